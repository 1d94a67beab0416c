"""How the loss of right answers changed, beside what plans predicted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moeprune.core.answer_loss import DomainLoss, domain_losses
from moeprune.core.run import Run
from moeprune.evaluate.paired.ranks import Correlation, spearman

_FEWEST = 3  # pairs that have a rank correlation worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class LossChange:
    """Of one domain of one variant, nats per token of its answers.

    Attributes:
        variant: its name.
        loss: of the domain, with the base's own loss as ``base``.
    """

    variant: str
    loss: DomainLoss

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        one = self.loss
        return {
            "variant": self.variant,
            "task": one.task,
            "domain": one.domain,
            **one.to_json(),
            "change": one.change,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LossChanges:
    """Of all variants.

    Attributes:
        changes: variant by variant, in the order of tasks and domains.
        correlation: Spearman's, of predicted and measured changes, over all of them; None: too few
            are predicted.
        left: variants whose answers are others than the base's, and no base stands beside them.
    """

    changes: tuple[LossChange, ...]
    correlation: Correlation | None
    left: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        found = self.correlation
        return {
            "domains": [one.to_json() for one in self.changes],
            "spearman": None if found is None else {"value": found.value, "n": found.n},
        }


def loss_changes(base: Run, variants: Sequence[Run]) -> LossChanges:
    """The changes of variants that measured a loss.

    The base's own run says what it was, where it measured the same answers; else what the variant's
    run says of the model without the plan.
    """
    changes, left = [], []
    for run in variants:
        own = [
            LossChange(variant=run.name, loss=loss)
            for loss in _beside(run.answer_loss, base.answer_loss)
            if loss.change is not None
        ]
        changes += own
        if run.answer_loss and base.answer_loss and not own:
            left.append(run.name)
    pairs = [
        (one.loss.predicted, one.loss.change)
        for one in changes
        if one.loss.predicted is not None and one.loss.change is not None
    ]
    ranked = spearman(*zip(*pairs, strict=True)) if len(pairs) >= _FEWEST else None
    return LossChanges(changes=tuple(changes), correlation=ranked, left=tuple(left))


def _beside(own: Mapping[str, Any], base: Mapping[str, Any]) -> list[DomainLoss]:
    """The losses of a run, with those of the base where it was given the same."""
    known = {
        (one.task, one.domain): one.nats
        for one in domain_losses(base)
        if base[one.task]["inputs"] == own.get(one.task, {}).get("inputs")
    }
    return [
        DomainLoss(
            task=one.task,
            domain=one.domain,
            tokens=one.tokens,
            nats=one.nats,
            base=known.get((one.task, one.domain), one.base),
            predicted=one.predicted,
        )
        for one in domain_losses(own)
    ]

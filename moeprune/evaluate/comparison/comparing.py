"""A base and its variants: every comparison, corrected, with what is to be said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moeprune.core.run import Run
from moeprune.core.summary import TaskSummary, summarise
from moeprune.errors import UsageError
from moeprune.evaluate.comparison.beside import Beside, beside
from moeprune.evaluate.comparison.capabilities import capabilities, tradeoff_json
from moeprune.evaluate.comparison.cautions import cautions
from moeprune.evaluate.comparison.correcting import corrected
from moeprune.evaluate.comparison.joining import chosen_tasks, join
from moeprune.evaluate.comparison.losses import LossChanges, loss_changes
from moeprune.evaluate.comparison.metrics import chosen_metrics
from moeprune.evaluate.comparison.regressions import Limit, Regression, regressions
from moeprune.evaluate.comparison.variants import VariantComparison, compare_variant
from moeprune.evaluate.paired.checks import check_share
from moeprune.evaluate.paired.tradeoff import Tradeoff

SCHEMA = "moeprune.comparison/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What ``moeprune compare`` says.

    Attributes:
        base: name of the base.
        model: what the base is a run of.
        summary: task -> the base's own figures.
        variants: in the order given.
        level: confidence of all intervals.
        families: table -> how many tests its corrected p-values are corrected for.
        agreement: name -> how far it selects another model's experts, of runs that say so.
        losses: how the loss of right answers changed, of runs that say so.
        beside: perplexity beside accuracy.
        tradeoff: of three variants and three tasks at least, else None.
        limit: what regression was allowed; None: not asked.
        regressions: losses beyond it.
        warnings: one line each.
    """

    base: str
    model: Mapping[str, Any]
    summary: Mapping[str, TaskSummary]
    variants: tuple[VariantComparison, ...]
    level: float
    families: Mapping[str, int]
    agreement: Mapping[str, Mapping[str, Any]]
    losses: LossChanges
    beside: tuple[Beside, ...]
    tradeoff: Tradeoff | None
    limit: Limit | None
    regressions: tuple[Regression, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain types."""
        return {
            "schema": SCHEMA,
            "base": {
                "name": self.base,
                "model": dict(self.model),
                "tasks": {name: figures.to_json() for name, figures in self.summary.items()},
            },
            "level": self.level,
            "tests": dict(self.families),
            "variants": [variant.to_json() for variant in self.variants],
            "selection_agreement": {name: dict(own) for name, own in self.agreement.items()},
            "answer_loss": self.losses.to_json(),
            "perplexity_beside_accuracy": [one.to_json() for one in self.beside],
            "tradeoff": None if self.tradeoff is None else tradeoff_json(self.tradeoff),
            "limit": None
            if self.limit is None
            else {
                "points": self.limit.points,
                "by": self.limit.by,
                "significant": self.limit.significant,
            },
            "regressions": [one.to_json() for one in self.regressions],
            "warnings": list(self.warnings),
        }


def compare_runs(
    base: Run,
    variants: Sequence[Run],
    *,
    metric: Sequence[str] = (),
    tasks: Sequence[str] | None = None,
    level: float = 0.95,
    limit: Limit | None = None,
    clusters: Mapping[str, Sequence[str]] | None = None,
    same: Sequence[bool] = (),
) -> Comparison:
    """Compare variants with a base, question by question.

    Args:
        base: what the others are measured against.
        variants: at least one; names differ.
        metric: ``NAME`` for all tasks that have it, or ``TASK=NAME``; without, whether an answer is
            right.
        tasks: names; None: all that are shared.
        level: confidence of the intervals; p-values are read against 1 - level.
        limit: what regression is allowed.
        clusters: two groups of tasks for the trade-off.
        same: of each variant, whether it is known to be the base itself.

    Raises:
        UsageError: an option that does not fit these runs.
        MismatchError: the runs cannot be paired.
    """
    check_share(level, name="the confidence level")
    if not variants:
        raise UsageError("nothing to compare with the base; name at least one variant.")
    chosen = chosen_tasks(base, variants, tasks)
    metrics, left = chosen_metrics((base, *variants), chosen, metric)
    joined = [join(base, variant, chosen) for variant in variants]
    bare = [
        compare_variant(variant, pairs, metrics=metrics, level=level)
        for variant, pairs in zip(variants, joined, strict=True)
    ]
    if not any(one.tasks or one.perplexity for one in bare):
        raise UsageError(
            f"no answer of {base.name} is right or wrong, nor has it a likelihood: there is "
            "nothing to compare. Name what to compare by as a metric."
        )
    compared, families = corrected(bare)
    figures = summarise(base)
    ranks = beside(compared, chosen)
    return Comparison(
        base=base.name,
        model=base.model,
        summary={name: figures[name] for name in chosen if name in figures},
        variants=compared,
        level=level,
        families=families,
        agreement={run.name: run.agreement for run in (base, *variants) if run.agreement},
        losses=loss_changes(base, variants),
        beside=ranks,
        tradeoff=capabilities(compared, clusters=clusters),
        limit=limit,
        regressions=() if limit is None else regressions(compared, limit),
        warnings=(
            *left,
            *cautions(
                base,
                variants,
                joined,
                compared,
                same=[*same, *[False] * len(variants)],
                ranks=ranks,
            ),
        ),
    )

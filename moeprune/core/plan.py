"""A pruning plan: which experts stay in every layer, and what that costs; checks itself.

D domains, L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.artefact import read_json, readable_json, write_bytes
from moeprune.core import plan_edits, plan_text
from moeprune.core.facts import ModelFacts
from moeprune.core.plan_checks import check_row
from moeprune.core.quantisation import LayerSchemes
from moeprune.core.rows import check_rows, row_name, rows_of
from moeprune.errors import MismatchError, PlanError
from moeprune.kinds import wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """Which experts stay. Whoever holds one may trust that the model it leaves can run.

    Attributes:
        model_name: Hub id or folder name, for people.
        model_fingerprint: of the checkpoint, see ``ModelFacts``.
        model_type: of the config that states the experts.
        top_k: experts run per token.
        num_groups: router groups, 1 = none.
        top_groups: groups a token may choose from.
        layer_ids: (L,) index of each MoE layer in the checkpoint, ascending.
        num_experts: (L,) routed experts of each layer before pruning.
        keep: (L,) the original ids of the experts that stay, ascending.
        sets: (L,) expert set of each row where a layer has several, ``""`` for the main one; or ()
            where every layer has one. The sets of a layer keep the same number.
        stats_sha256: of the stats file, or None if the plan was made from stats in memory.
        method: how it was made; ``"manual"`` for a plan written by hand.
        criterion: what an expert's worth was.
        allocation: ``"uniform"``, ``"global"``, …
        options: what was asked for, plain JSON values.
        domain_loss: domain -> share of its router mass in the removed experts.
        worst_domain: the domain that loses most, or None if no loss is known.
        worst_domain_loss: its loss.
        predicted: domain -> the change of the loss that :func:`moeprune.core.predicted.predicted`
            expects, nats per target token; empty where the stats hold no loss.
        worst_predicted: the domain of which it expects most, or None.
        lower_bound: a proven lower bound of the worst-domain loss, or None if not computed.
        routing: ``entropy_ratio`` and ``regime`` of the model, plain JSON values.
        size: ``bytes_before`` and ``bytes_after``.
        stability: ``jaccard``: how much of the plan other text would have chosen too.
        kept_sha256: of the lists of kept experts (and the schemes) that the figures are of; another
            one than of ``keep``: the lists were edited, see :attr:`edited`.
        details: what the allocator has to say of its choice, plain JSON values.
        quantize: the scheme that the kept experts of each layer are to be stored in, or None: as
            the source stores them.
        reasons: one line each: why this method or allocation, where moeprune chose it.
        warnings: one line each, for people.
    """

    model_name: str
    model_fingerprint: str
    model_type: str
    top_k: int
    num_groups: int = 1
    top_groups: int = 1
    layer_ids: tuple[int, ...]
    num_experts: tuple[int, ...]
    keep: tuple[tuple[int, ...], ...]
    sets: tuple[str, ...] = ()
    stats_sha256: str | None = None
    method: str = "manual"
    criterion: str = "manual"
    allocation: str = "manual"
    options: Mapping[str, Any] = field(default_factory=dict)
    domain_loss: Mapping[str, float] = field(default_factory=dict)
    worst_domain: str | None = None
    worst_domain_loss: float | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    worst_predicted: str | None = None
    lower_bound: float | None = None
    routing: Mapping[str, Any] = field(default_factory=dict)
    size: Mapping[str, Any] = field(default_factory=dict)
    stability: Mapping[str, Any] = field(default_factory=dict)
    kept_sha256: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    quantize: LayerSchemes | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.layer_ids:
            raise PlanError("the plan has no layer; list every MoE layer of the model.")
        if not len(self.layer_ids) == len(self.num_experts) == len(self.keep):
            raise PlanError(
                f"the plan has {len(self.layer_ids)} layers, {len(self.num_experts)} expert counts "
                f"and {len(self.keep)} lists of kept experts; give one of each per layer."
            )
        if len(self.sets) not in (0, len(self.layer_ids)):
            raise PlanError(f"the plan has {len(self.layer_ids)} layers and {len(self.sets)} sets.")
        rows = rows_of(self.layer_ids, self.sets)
        check_rows(rows, self.keep)
        if min(self.top_k, self.num_groups, self.top_groups) < 1:
            raise PlanError(
                f"top_k {self.top_k}, num_groups {self.num_groups} and top_groups "
                f"{self.top_groups} must be positive; copy them from 'moeprune inspect'."
            )
        for row, count, ids in zip(rows, self.num_experts, self.keep, strict=True):
            check_row(self, row_name(*row), count, ids)
        if self.quantize is not None and len(self.quantize.schemes) != len(self.layer_ids):
            raise PlanError(
                f"the plan has {len(self.layer_ids)} layers and {len(self.quantize.schemes)} "
                "schemes; give every layer one."
            )
        if not self.num_removed and self.quantize is None:
            raise PlanError("the plan removes no expert; take at least one id out of a 'keep'.")

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layer_ids)

    @property
    def num_removed(self) -> int:
        """Experts that leave, in all layers."""
        return sum(self.num_experts) - sum(len(ids) for ids in self.keep)

    @property
    def ratio(self) -> float:
        """Share of the routed experts that leave."""
        return self.num_removed / sum(self.num_experts)

    @property
    def removed(self) -> tuple[tuple[int, ...], ...]:
        """(L,) original ids of the experts that leave, ascending."""
        return tuple(
            tuple(sorted(set(range(count)) - set(ids)))
            for count, ids in zip(self.num_experts, self.keep, strict=True)
        )

    @property
    def uniform_count(self) -> int | None:
        """Experts that every layer keeps, or None where layers keep different numbers."""
        counts = {len(ids) for ids in self.keep}
        return counts.pop() if len(counts) == 1 else None

    @property
    def edited(self) -> bool:
        """Whether it states figures, and they are not of the experts that it keeps."""
        return plan_edits.is_edited(self)

    def without_stale(self) -> PrunePlan:
        """The plan itself; if it was edited, without its figures and with a warning of that."""
        return plan_edits.without_stale(self)

    def keep_mask_LE(self) -> NDArray[np.bool_]:
        """(L, E) bool, True = the expert stays; False beyond the experts of a narrow layer."""
        mask_LE = np.zeros((self.num_layers, max(self.num_experts)), dtype=np.bool_)
        for row, ids in enumerate(self.keep):
            mask_LE[row, list(ids)] = True
        return mask_LE

    def check_against(self, facts: ModelFacts) -> PrunePlan:
        """Return the plan itself if it was made for this model.

        Raises:
            MismatchError: it was not; the message names both fingerprints, or what differs.
        """
        if self.model_fingerprint != facts.fingerprint:
            raise MismatchError(
                f"the plan is for {self.model_name} (fingerprint {self.model_fingerprint[:12]}), "
                f"this is {facts.name} ({facts.fingerprint[:12]}). Use the model the plan was "
                "made for, or make a plan for this one."
            )
        for name, mine, theirs in (
            ("layers", self.layer_ids, facts.layer_ids),
            ("expert sets", self.sets, facts.sets),
            ("experts per layer", self.num_experts, facts.num_experts),
            ("experts per token", self.top_k, facts.top_k),
            ("router groups", self.num_groups, facts.num_groups),
            ("router groups per token", self.top_groups, facts.top_groups),
        ):
            if mine != theirs:
                raise MismatchError(
                    f"the plan states {name} {_short(mine)}, {facts.name} has {_short(theirs)}. "
                    "Undo the edit, or make the plan again."
                )
        return self

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``plan.json``."""
        return plan_text.to_json(self)

    def to_bytes(self) -> bytes:
        """``plan.json``: sorted keys, one line a layer; same plan, same bytes."""
        return readable_json(self.to_json()).encode()

    def save(self, path: Path) -> None:
        """Write ``plan.json``, complete or not at all.

        Raises:
            OutputError: the path cannot be written.
        """
        write_bytes(path, self.to_bytes())

    @classmethod
    def from_json(cls, body: Any, *, path: object) -> PrunePlan:
        """Rebuild and check a plan; ``path`` is named in messages.

        Raises:
            PlanError: not a plan, one that leaves a model that cannot run, or one that was edited
                against its own options.
        """
        plan = cls(**plan_text.from_json(body, path=path))
        plan_edits.check_promises(plan, path=path)
        return plan

    @classmethod
    def load(cls, path: Path) -> PrunePlan:
        """Read ``plan.json`` and check it: a person may have edited it.

        Raises:
            PlanError: not a plan, or one that leaves a model that cannot run.
        """
        body = read_json(path, error=PlanError, what=wanted(plan_text.SCHEMA))
        return cls.from_json(body, path=path)


def _short(value: object) -> str:
    return re.sub(r"^(.{60}).*$", r"\1…", str(value))

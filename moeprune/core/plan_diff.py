"""What two plans for one model decide differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moeprune.core.plan import PrunePlan
from moeprune.core.rows import Row, row_name, rows_of
from moeprune.errors import MismatchError


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDiff:
    """One layer (or expert set of a layer) in both plans.

    Attributes:
        row: layer and expert set.
        kept: how many experts A and B keep.
        only_a: ids that A keeps and B removes.
        only_b: ids that B keeps and A removes.
        jaccard: overlap of what A and B remove, 1 = the same or nothing.
        schemes: of the kept experts in A and B; None: as the source stores them.
    """

    row: Row
    kept: tuple[int, int]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    jaccard: float
    schemes: tuple[str | None, str | None] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """Two plans side by side.

    Attributes:
        rows: every layer.
        jaccard: overlap of all that A and B remove.
        losses: domain -> what A and B lose of it; None: not known, or edited by hand since.
        predicted: domain -> the change of its loss that A and B predict, nats per target token;
            None likewise.
    """

    rows: tuple[RowDiff, ...]
    jaccard: float
    losses: Mapping[str, tuple[float | None, float | None]]
    predicted: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)

    @property
    def schemes(self) -> bool:
        """Whether one of them states how kept experts are to be stored."""
        return any(scheme is not None for row in self.rows for scheme in row.schemes)

    def to_json(self) -> dict[str, Any]:
        """A JSON object of plain types."""
        return {
            "jaccard": self.jaccard,
            "layers": [
                {"layer": row.row[0]}
                | ({"set": row.row[1]} if row.row[1] else {})
                | {
                    "kept": {"a": row.kept[0], "b": row.kept[1]},
                    "only_a_keeps": list(row.only_a),
                    "only_b_keeps": list(row.only_b),
                    "jaccard": row.jaccard,
                }
                | ({"scheme": dict(zip("ab", row.schemes, strict=True))} if self.schemes else {})
                for row in self.rows
            ],
            "domain_loss": {name: {"a": a, "b": b} for name, (a, b) in self.losses.items()},
            **(
                {"predicted": {name: {"a": a, "b": b} for name, (a, b) in self.predicted.items()}}
                if self.predicted
                else {}
            ),
        }


def diff_plans(a: PrunePlan, b: PrunePlan) -> PlanDiff:
    """Compare two plans.

    Raises:
        MismatchError: they are for different models.
    """
    if a.model_fingerprint != b.model_fingerprint:
        raise MismatchError(
            f"the plans are for different models: {a.model_name} "
            f"(fingerprint {a.model_fingerprint[:12]}) and {b.model_name} "
            f"({b.model_fingerprint[:12]}). Compare plans for one model."
        )
    rows = rows_of(a.layer_ids, a.sets)
    if (rows, a.num_experts) != (rows_of(b.layer_ids, b.sets), b.num_experts):
        raise MismatchError(
            f"the plans state different layers or expert counts of {a.model_name}. Undo the edit "
            "of one, or make it again."
        )
    pairs = list(zip(a.removed, b.removed, strict=True))
    known_a, known_b = a.without_stale(), b.without_stale()
    return PlanDiff(
        rows=tuple(
            RowDiff(
                row=row,
                kept=(len(keep_a), len(keep_b)),
                only_a=tuple(sorted(set(keep_a) - set(keep_b))),
                only_b=tuple(sorted(set(keep_b) - set(keep_a))),
                jaccard=_jaccard([removed]),
                schemes=schemes,
            )
            for row, keep_a, keep_b, removed, schemes in zip(
                rows, a.keep, b.keep, pairs, zip(_schemes(a), _schemes(b), strict=True), strict=True
            )
        ),
        jaccard=_jaccard(pairs),
        losses=_beside(known_a.domain_loss, known_b.domain_loss),
        predicted=_beside(known_a.predicted, known_b.predicted),
    )


def diff_name(row: RowDiff) -> str:
    """How a table names the layer: ``3``, ``3 (attention)``."""
    return row_name(*row.row).removeprefix("layer ")


def _beside(
    a: Mapping[str, float], b: Mapping[str, float]
) -> dict[str, tuple[float | None, float | None]]:
    return {name: (a.get(name), b.get(name)) for name in sorted({*a, *b})}


def _schemes(plan: PrunePlan) -> Sequence[str | None]:
    return plan.quantize.schemes if plan.quantize else (None,) * plan.num_layers


def _jaccard(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    both = sum(len(set(a) & set(b)) for a, b in pairs)
    either = sum(len(set(a) | set(b)) for a, b in pairs)
    return both / either if either else 1.0

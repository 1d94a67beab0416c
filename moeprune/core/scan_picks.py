"""The best k₂ of each k₁: by the perplexity of each split, and by each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeprune.core.scan_grid import Axes
from moeprune.core.scan_rows import Row

TEXT, TASK = "perplexity", "task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The best k₂ of one k₁ by one figure.

    Attributes:
        k1: experts that run.
        by: split of the texts, or task.
        kind: ``perplexity`` or ``task``.
        k2: the best.
        value: its perplexity or accuracy.
        ties: other k₂ with the same value.
        edge: ``low`` or ``high`` where it lies on the edge of the scan and one may go on; ``""``
            where it does not.
        extend: k₂ to scan beside, then.
    """

    k1: int
    by: str
    kind: str
    k2: int
    value: float
    ties: tuple[int, ...] = ()
    edge: str = ""
    extend: int | None = None


def rows_of_k1(rows: Sequence[Row], k1: int) -> list[Row]:
    """The rows of one k₁, the native model's not among them."""
    return [row for row in rows if row.point.k1 == k1 and row.point.policy is not None]


def compared(rows: Sequence[Row], k1: int) -> list[Row]:
    """Those of one k₁ among which the best k₂ is looked for; the native one where it is of it."""
    native = rows[0]
    own = [row for row in rows_of_k1(rows, k1) if row.point.compared]
    return [native, *own] if own and native.point.k1 == k1 else own


def best(rows: Sequence[Row], k1: int, by: str) -> Row:
    """The best row of one k₁; of equals the one with the lower last perplexity, then lower k₂."""
    return min(compared(rows, k1), key=lambda row: _order(row, by))


def by_tasks(rows: Sequence[Row], k1: int, texts: Sequence[str]) -> Row:
    """The row of one k₁ with the best mean over its tasks; of equals as :func:`best`."""

    def order(row: Row) -> tuple[float, float, int]:
        accuracies = [figures.accuracy for figures in row.tasks.values()]
        last = row.texts[texts[-1]].perplexity if texts else 0.0
        return -sum(accuracies) / len(accuracies), last, row.point.k2

    return min(compared(rows, k1), key=order)


def picks_of(rows: Sequence[Row], axes: Axes) -> tuple[Pick, ...]:
    """The best k₂ of every k₁, by each split and each task that was asked.

    Args:
        rows: of the scan, the native model first.
        axes: of the grid.
    """
    found = []
    for k1 in dict.fromkeys(row.point.k1 for row in rows if row.point.compared):
        scanned = sorted(row.point.k2 for row in compared(rows, k1))
        for by in (*rows[0].texts, *rows[0].tasks):
            row = best(rows, k1, by)
            same = [one for one in compared(rows, k1) if _value(one, by) == _value(row, by)]
            k2, edge, extend = row.point.k2, "", None
            # One that is as good, with neighbours on both sides: there is nothing to go on for.
            inside = any(scanned[0] < one.point.k2 < scanned[-1] for one in same)
            if k2 == scanned[-1] and k2 < axes.experts and not inside:
                edge, extend = "high", axes.clipped(2 * k2)
            elif k2 == scanned[0] and k2 > 1 and not inside:
                edge, extend = "low", k2 - 1
            if extend in scanned:  # all that the groups of a token hold
                extend = axes.experts
            found.append(
                Pick(
                    k1=k1,
                    by=by,
                    kind=TASK if by in row.tasks else TEXT,
                    k2=k2,
                    value=_value(row, by),
                    ties=tuple(one.point.k2 for one in same if one is not row),
                    edge=edge,
                    extend=extend,
                )
            )
    return tuple(found)


def _value(row: Row, by: str) -> float:
    return row.tasks[by].accuracy if by in row.tasks else row.texts[by].perplexity


def _order(row: Row, by: str) -> tuple[float, float, int]:
    last = [0.0, *(figures.perplexity for figures in row.texts.values())][-1]
    value = _value(row, by)
    return -value if by in row.tasks else value, last, row.point.k2

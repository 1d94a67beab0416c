"""The rows of every (L, …) array: a MoE layer each, or each expert set of a layer with several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from moeprune.errors import PlanError

Row = tuple[int, str]


def rows_of(layer_ids: Sequence[int], sets: Sequence[str]) -> tuple[Row, ...]:
    """(L,) layer and expert set of each row.

    Args:
        layer_ids: (L,) layers.
        sets: (L,) expert sets, ``""`` for the main one; or empty: every layer has one.
    """
    return tuple(zip(layer_ids, sets or ("",) * len(layer_ids), strict=True))


def row_name(layer: int, expert_set: str) -> str:
    """How messages name a row: ``layer 3``, ``layer 3 (attention)``."""
    return f"layer {layer} ({expert_set})" if expert_set else f"layer {layer}"


def check_rows(rows: Sequence[Row], keep: Sequence[Sequence[int]]) -> None:
    """Check that the rows of a plan ascend, and that the sets of a layer keep the same number.

    Raises:
        PlanError: they do not.
    """
    for before, after in pairwise(rows):
        if before >= after:
            raise PlanError(
                f"{row_name(*after)} stands after {row_name(*before)}; list every layer once, in "
                "order."
            )
    for (row, ids), (other, other_ids) in _within_layers(rows, keep):
        if len(ids) != len(other_ids):
            raise PlanError(
                f"{row_name(*row)} keeps {len(ids)} experts and {row_name(*other)} "
                f"{len(other_ids)}; the sets of a layer share one count in config.json."
            )


def _within_layers(
    rows: Sequence[Row], keep: Sequence[Sequence[int]]
) -> Iterator[tuple[tuple[Row, Sequence[int]], tuple[Row, Sequence[int]]]]:
    for before, after in pairwise(zip(rows, keep, strict=True)):
        if before[0][0] == after[0][0]:
            yield before, after

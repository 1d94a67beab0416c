"""What a person wants kept, from the words of ``plan``: constraints, and what the plan records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.core.constraints import Constraints
from moeprune.core.must_keep import must_keep_rows
from moeprune.core.rows import row_name
from moeprune.core.stats import CalibrationStats
from moeprune.core.super_experts import super_experts


@dataclass(frozen=True, slots=True)
class Asked:
    """Constraints and their record.

    Attributes:
        constraints: for the budget.
        options: entries of the plan's ``options``.
        details: entries of the plan's ``details``.
    """

    constraints: Constraints
    options: Mapping[str, Any]
    details: Mapping[str, Any]


def constraints_for(
    stats: CalibrationStats,
    *,
    keep_layers: Iterable[int] | None = None,
    layer_keep: Mapping[int, int] | None = None,
    protect_super_experts: bool = False,
    must_keep: str | Path | Mapping[Any, Any] | None = None,
) -> Asked:
    """What a person wants kept.

    Raises:
        UsageError: no such layer, expert or file; or a layer with two counts.
    """
    model = stats.model
    named = () if must_keep is None else must_keep_rows(must_keep, model)
    found = super_experts(stats) if protect_super_experts else ()
    constraints = Constraints.of(
        model,
        keep_layers=keep_layers or (),
        layer_keep=layer_keep,
        protected=[rows for rows in (named, found) if rows],
    )
    options: dict[str, Any] = {}
    details: dict[str, Any] = {}
    if constraints.whole:
        options["keep_layers"] = list(constraints.whole)
    own = {
        str(layer): keep
        for layer, keep in constraints.layer_keep.items()
        if layer not in constraints.whole
    }
    if own:
        options["layer_keep"] = own
    if named:
        options["must_keep"] = _by_name(stats, named)
    if protect_super_experts:
        options["protect_super_experts"] = True
        details["super_experts"] = _by_name(stats, found)
    return Asked(constraints, options, details)


def _by_name(stats: CalibrationStats, ids_L: Sequence[Sequence[int]]) -> dict[str, list[int]]:
    return {
        row_name(*row).removeprefix("layer "): list(ids)
        for row, ids in zip(stats.model.rows, ids_L, strict=True)
        if ids
    }

"""The floors of a model: how many experts a layer must keep, in which units, and why.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from moeprune.core.facts import ModelFacts
from moeprune.errors import PlanError, UsageError

# A group's score is the sum of its two best experts (DeepSeek-V3 and its kin, which route so even
# with one group), and Jamba builds a dense layer for a single expert: two must stay.
MIN_PER_GROUP = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What a layer that loses experts must still keep.

    Attributes:
        min_keep: the fewest experts such a layer may keep; a multiple of ``unit``.
        unit: what it keeps is a multiple of this.
    """

    min_keep: int
    unit: int


def limits(facts: ModelFacts, *, multiple_of: int = 1) -> Limits:
    """The floors of one model: enough experts for a token, equal groups, whole units.

    Args:
        facts: the model.
        multiple_of: what the number of kept experts must divide by, e.g. for expert parallelism.

    Raises:
        UsageError: ``multiple_of`` is not a positive integer.
        PlanError: a layer's experts do not divide into the router's groups.
    """
    if type(multiple_of) is not int or multiple_of < 1:
        raise UsageError(f"--multiple-of {multiple_of} is not a count; use 1 or more.")
    groups = facts.num_groups
    for layer, count in zip(facts.layer_ids, facts.num_experts, strict=True):
        if count % groups:
            raise PlanError(
                f"layer {layer} has {count} experts, which do not divide into the router's "
                f"{groups} groups; check n_group in the model's config.json."
            )
    unit = math.lcm(multiple_of, groups)
    per_group = max(MIN_PER_GROUP, -(-facts.top_k // facts.top_groups))
    floor = max(facts.top_k, groups * per_group)
    return Limits(min_keep=round_up(floor, unit), unit=unit)


def row_floors(
    facts: ModelFacts, limit: Limits, protected: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """The fewest experts that each row may keep if it loses any.

    Groups lose the same number, so a row keeps as many of every group as the group that protects
    most.

    Args:
        facts: the model.
        limit: its floors.
        protected: (L,) ids that never leave, or (): none.

    Returns:
        (L,) multiples of the unit; one that reaches the row's experts: nothing can leave it.
    """
    groups = facts.num_groups
    floors = []
    for count, ids in zip(facts.num_experts, protected or ((),) * facts.num_layers, strict=True):
        kept_G = [0] * groups
        for expert in set(ids):
            kept_G[expert * groups // count] += 1
        floors.append(round_up(max(limit.min_keep, groups * max(kept_G)), limit.unit))
    return tuple(floors)


def round_up(value: int, unit: int) -> int:
    """The smallest multiple of ``unit`` that is not below ``value``."""
    return -(-value // unit) * unit


def counts(facts: ModelFacts) -> str:
    """The experts of a layer in words, for messages."""
    low, high = min(facts.num_experts), max(facts.num_experts)
    return f"{low} experts" if low == high else f"{low} to {high} experts"


def why(facts: ModelFacts, limit: Limits) -> str:
    """What a pruned layer must keep and why, for messages."""
    text = f"at least {limit.min_keep} experts in every layer (each token runs {facts.top_k}"
    return text + (f", {unit_why(facts, limit)})" if limit.unit > 1 else ")")


def unit_why(facts: ModelFacts, limit: Limits) -> str:
    """Why kept counts come in units, for messages."""
    reasons = [f"its router has {facts.num_groups} groups"] if facts.num_groups > 1 else []
    if limit.unit != facts.num_groups:
        reasons.append(f"kept counts are a multiple of {limit.unit}")
    return ", ".join(reasons)

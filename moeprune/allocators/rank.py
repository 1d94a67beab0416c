"""Rank: the experts with the lowest scores leave, as far as the budget goes."""

from __future__ import annotations

from moeprune.core.budget import Budget
from moeprune.core.choice import Mask, keep_highest
from moeprune.core.stats import Array

OPTIONS: tuple[str, ...] = ()


def allocate(score_LE: Array, *, mass_DLE: Array, budget: Budget) -> Mask:
    """Keep the experts with the highest scores.

    Args:
        score_LE: (L, E) float64, higher = worth more.
        mass_DLE: (D, L, E) router mass per domain; not read.
        budget: how many may leave where.

    Returns:
        (L, E) bool, True = the expert stays.
    """
    del mass_DLE
    return keep_highest(score_LE, budget)

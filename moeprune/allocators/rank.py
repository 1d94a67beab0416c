"""Rank: the experts with the lowest scores leave, as far as the budget goes."""

from __future__ import annotations

from moeprune.core.budget import Budget
from moeprune.core.choice import Outcome, keep_highest
from moeprune.core.stats import Array

OPTIONS: tuple[str, ...] = ()


def allocate(score_LE: Array, *, worth_DLE: Array, budget: Budget) -> Outcome:
    """Keep the experts with the highest scores.

    Args:
        score_LE: (L, E) float64, higher = worth more.
        worth_DLE: (D, L, E) the same per domain; not read.
        budget: how many may leave where.

    Returns:
        The plan.
    """
    del worth_DLE
    return Outcome(keep_highest(score_LE, budget))

"""The removal whose worst domain loses the least share of its own whole worth, with its proof.

What a domain loses is the share of its worth, over all layers and experts together, that leaves: a
layer where little is at stake for a domain may lose much there, unlike in MESA, where each layer
of a domain weighs the same. Solved exactly, as ``_exact`` says; of equals the least mean over
domains.

D domains, L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

import time

from moeprune.allocators._exact import OPTIONS, QUICK, check_options, least_worst
from moeprune.allocators._problem import Problem
from moeprune.core.budget import Budget
from moeprune.core.choice import Outcome, keep_highest, real_LE
from moeprune.core.stats import Array

__all__ = ["OPTIONS", "QUICK", "allocate"]


def allocate(
    score_LE: Array,
    *,
    worth_DLE: Array,
    budget: Budget,
    gap: float = 1e-4,
    time_limit: float = 60.0,
) -> Outcome:
    """Keep the experts of the plan whose worst domain loses least.

    It removes as many experts as ranking by the scores does.

    Args:
        score_LE: (L, E) float64, comparable between layers: what the search starts from.
        worth_DLE: (D, L, E) float64, not negative: each domain's worth, comparable between the
            layers of a domain; only shares of a domain's sum are read.
        budget: how many may leave where.
        gap: relative distance to the optimum that is good enough.
        time_limit: seconds after which the best plan so far is taken; 0 = no solver.

    Returns:
        The plan; for its details see :func:`moeprune.allocators._exact.least_worst`.

    Raises:
        UsageError: an option out of range.
    """
    check_options(gap=gap, time_limit=time_limit)
    begun = time.monotonic()
    ranked_N = (real_LE(budget.num_experts) & ~keep_highest(score_LE, budget)).reshape(-1)
    problem = Problem(worth_DLE, budget, total=int(ranked_N.sum()))
    return least_worst(problem, [ranked_N], gap=gap, time_limit=time_limit, begun=begun)

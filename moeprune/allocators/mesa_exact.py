"""MESA's objective solved, not approached: the least loss of the worst domain, with its proof.

Equation (2) of the MESA paper asks for the removal whose worst domain loses least; its Algorithm 1
is a heuristic for it. Here ``_exact`` solves it, MESA's own plan being one of those it starts from.

D domains, L MoE layers, E experts of the widest layer, N = L · E.
"""

from __future__ import annotations

import time

from moeprune.allocators import mesa
from moeprune.allocators._exact import OPTIONS, QUICK, check_options, least_worst
from moeprune.allocators._problem import Problem
from moeprune.core.budget import Budget
from moeprune.core.choice import Outcome, real_LE
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

    It removes as many experts as MESA does.

    Args:
        score_LE: (L, E) float64: R, the pooled signal (router mass), rows normalised to 1.
        worth_DLE: (D, L, E) float64: D_d, each domain's signal, rows normalised to 1.
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
    mesa_LE = mesa.allocate(score_LE, worth_DLE=worth_DLE, budget=budget).keep_LE
    mesa_N = (real_LE(budget.num_experts) & ~mesa_LE).reshape(-1)
    problem = Problem(worth_DLE, budget, total=int(mesa_N.sum()))
    return least_worst(problem, [mesa_N], gap=gap, time_limit=time_limit, begun=begun)

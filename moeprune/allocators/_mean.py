"""The least mean loss of all plans whose worst domain loses no more than a limit: a lower bound.

For any prices ρ ≥ 0 of the domains, mean loss + Σ_d ρ_d (loss_d - limit) is at most the mean loss
of a plan within the limit, and sorting finds its minimum over all plans. The prices are searched
for by cutting planes, as in ``_bound``.

D domains, N experts.
"""

from __future__ import annotations

import numpy as np

from moeprune.allocators._problem import Problem
from moeprune.core.choice import Mask
from moeprune.core.stats import Array

_ROUNDS = 60
_HIGHEST = 200.0
_CLOSE = 1e-9  # relative to the limit: what more rounds could add at most


def least_mean(
    problem: Problem, weight_D: Array, *, limit: float, goal: float
) -> tuple[float, Array, Mask | None]:
    """A lower bound of the mean loss, by cutting planes that stop at a goal.

    Args:
        problem: what may leave.
        weight_D: (D,) weights that prove the bound of the worst loss.
        limit: the worst loss that is allowed.
        goal: a bound that is high enough.

    Returns:
        The bound; (D,) weights that prove it, summing to 1; the best whole plan within the limit
        that was met, if any.
    """
    from scipy.optimize import linprog

    domains = weight_D.size
    ends = _HIGHEST * weight_D.max()
    price_D = np.clip(weight_D / max(weight_D.min(), 1 / _HIGHEST) / domains - 1 / domains, 0, ends)
    best, best_D = -np.inf, weight_D
    plan, plan_mean = None, np.inf
    cuts: list[Array] = []
    for _ in range(_ROUNDS):
        whole_D = price_D + 1 / domains
        answer = problem.cheapest(whole_D)
        value = float(whole_D @ answer.loss_D - limit * price_D.sum())
        if value > best:
            best, best_D = value, whole_D / whole_D.sum()
        mean = float(answer.loss_D.mean())
        if answer.leave_N is not None and answer.loss_D.max() <= limit and mean < plan_mean:
            plan, plan_mean = answer.leave_N, mean
        cuts.append(answer.loss_D)
        if best >= goal:
            break
        over_CD = np.array(cuts) - limit
        mean_C = np.array(cuts).mean(axis=1) - limit
        scale = float(np.abs(over_CD).max()) or 1.0
        solved = linprog(
            np.append(np.zeros(domains), -1.0),
            A_ub=np.hstack([-over_CD / scale, np.ones((len(cuts), 1))]),
            b_ub=mean_C / scale,
            bounds=[(0.0, ends)] * domains + [(None, None)],
            method="highs-ds",
        )
        if solved.x is None:
            break
        price_D = np.clip(solved.x[:domains], 0.0, None)
        if limit - solved.fun * scale < goal and limit - solved.fun * scale - best < _CLOSE * limit:
            break
    return best, best_D, plan

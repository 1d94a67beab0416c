"""How little the worst domain can lose: a proof by duality, for any plan of a budget.

The worst domain loses at least what any weighted mean of the domains loses, so for every λ ≥ 0 with
Σ λ_d = 1 the cheapest removal by Σ_d λ_d loss_d is a lower bound, and one that sorting finds
exactly: it is right whatever λ is. The best λ gives the bound of the linear relaxation of the MESA
paper's equation (2). It is searched for by cutting planes (Kelley): each answer of the sorting is a
plane over which the bound cannot rise, and a small linear program names the next λ. Only the search
rests on a solver's tolerances, never the bound.

D domains, L MoE layers, E experts of the widest layer, N = L · E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from moeprune.allocators._problem import Problem
from moeprune.core.budget import Budget
from moeprune.core.choice import Mask
from moeprune.core.rounding import rounded_down
from moeprune.core.stats import Array

_ROUNDS = 250
_CLOSE = 1e-9  # relative distance to the best possible bound at which the search ends


@dataclass(slots=True)
class Bound:
    """The outcome of the search.

    Attributes:
        value: proven: no plan's worst domain loses less.
        weight_D: (D,) the λ that proves it.
        plans: whole plans met on the way, (N,) bool each, with their worst loss; best first.
    """

    value: float
    weight_D: Array
    plans: list[tuple[float, Mask]] = field(default_factory=list)


def lower_bound(worth_DLE: Array, budget: Budget, *, total: int | None = None) -> float:
    """A number below which the worst-domain loss of no plan of this budget can be.

    Args:
        worth_DLE: (D, L, E) float64, not negative; 0 beyond a narrow layer's experts.
        budget: how many may leave where.
        total: experts that leave in all, if other than the budget's.

    Returns:
        The bound, see :func:`moeprune.core.rounding.rounded_down`.
    """
    return rounded_down(search(Problem(worth_DLE, budget, total=total)).value)


def search(problem: Problem) -> Bound:
    """The best weights of the domains, by cutting planes."""
    domains = problem.loss_ND.shape[1]
    weight_D = np.full(domains, 1 / domains)
    best = Bound(-math.inf, weight_D)
    cuts: list[Array] = []
    for _ in range(_ROUNDS):
        answer = problem.cheapest(weight_D)
        value = float(weight_D @ answer.loss_D / weight_D.sum())
        if value > best.value:
            best.value, best.weight_D = value, weight_D
        if answer.leave_N is not None:
            best.plans.append((float(answer.loss_D.max()), answer.leave_N))
        cuts.append(answer.loss_D)
        highest, weight_D = _next(np.array(cuts))
        if highest - best.value <= _CLOSE * best.value:
            break
    best.plans.sort(key=lambda plan: plan[0])
    return best


def _next(loss_CD: Array) -> tuple[float, Array]:
    """Where the lowest of all planes is highest: how high, and at which weights."""
    from scipy.optimize import linprog

    cuts, domains = loss_CD.shape
    # The planes differ in the last digits only; the solver sees the differences, scaled.
    middle = float(loss_CD[-1].mean())
    scale = float(np.abs(loss_CD - middle).max()) or 1.0
    solved = linprog(
        np.append(np.zeros(domains), -1.0),
        A_ub=np.hstack([-(loss_CD - middle) / scale, np.ones((cuts, 1))]),
        b_ub=np.zeros(cuts),
        A_eq=np.append(np.ones(domains), 0.0)[None, :],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * domains + [(None, None)],
        method="highs-ds",
    )
    if solved.x is None:  # a solver that gives up ends the search, not the plan
        return -math.inf, np.full(domains, 1 / domains)
    weight_D = np.clip(solved.x[:domains], 0.0, None)
    return middle - float(solved.fun) * scale, weight_D / weight_D.sum()

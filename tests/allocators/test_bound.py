"""The lower bound: below every plan there is, and as high as the linear relaxation's."""

import numpy as np
import pytest
from brute import cases, losses
from hypothesis import given, settings
from scipy.optimize import linprog
from synthetic import facts

from moeprune.allocators._bound import lower_bound, search
from moeprune.allocators._problem import Problem
from moeprune.core.budget import Budget
from moeprune.core.choice import keep_highest


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_no_plan_is_below_it(case):
    if case is None:
        return
    worth_DLE, budget = case
    total = int(np.sum(budget.num_experts) - keep_highest(worth_DLE.mean(axis=0), budget).sum())
    worst_P = losses(worth_DLE, budget, total).max(axis=1)
    assert 0 < lower_bound(worth_DLE, budget, total=total) <= worst_P.min()


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_every_weighting_gives_a_bound_and_the_cheapest_plan(case):
    if case is None:
        return
    worth_DLE, budget = case
    total = int(np.sum(budget.num_experts) - keep_highest(worth_DLE.mean(axis=0), budget).sum())
    problem = Problem(worth_DLE, budget, total=total)
    loss_PD = losses(worth_DLE, budget, total)
    for weight_D in np.random.default_rng(0).dirichlet(np.ones(len(worth_DLE)), size=3):
        answer = problem.cheapest(weight_D)
        cheapest = (loss_PD @ weight_D).min()
        if answer.leave_N is None:
            assert answer.loss_D @ weight_D <= cheapest + 1e-12
        else:
            assert answer.loss_D @ weight_D == pytest.approx(cheapest, abs=1e-12)
            assert answer.leave_N.sum() == total


def relaxed(worth_DLE, budget):
    """The linear relaxation, written down for a solver: no groups, no units, no caps that bind."""
    domains, rows, width = worth_DLE.shape
    share_DN = worth_DLE.reshape(domains, -1) / rows
    if budget.allocation == "uniform":
        sums = np.kron(np.eye(rows), np.ones(width))
        right = np.array(budget.max_remove, dtype=float)
    else:
        sums, right = np.ones((1, rows * width)), np.array([float(budget.remove_total)])
    solved = linprog(
        np.append(np.zeros(rows * width), 1.0),
        A_ub=np.hstack([share_DN, -np.ones((domains, 1))]),
        b_ub=np.zeros(domains),
        A_eq=np.hstack([sums, np.zeros((len(sums), 1))]),
        b_eq=right,
        bounds=[(0, 1)] * (rows * width) + [(None, None)],
        method="highs",
    )
    return solved.fun


@pytest.mark.parametrize("allocation", ["uniform", "global"])
@pytest.mark.parametrize("domains", [1, 2, 6])
@pytest.mark.parametrize("percent", [12, 25, 50])
def test_it_is_the_linear_relaxation(allocation, domains, percent):
    rng = np.random.default_rng(percent + domains)
    worth_DLE = np.exp(rng.normal(size=(domains, 5, 16)) * 0.1)
    worth_DLE /= worth_DLE.sum(axis=2, keepdims=True)
    budget = Budget.of(
        facts([16] * 5, top_k=1), ratio=percent / 100, keep=None, allocation=allocation
    )
    want = relaxed(worth_DLE, budget)
    assert lower_bound(worth_DLE, budget) == pytest.approx(want, rel=1e-7)
    assert search(Problem(worth_DLE, budget)).value == pytest.approx(want, rel=1e-7)


def test_one_domain_is_solved_by_sorting():
    budget = Budget.of(facts([4], top_k=1), ratio=0.5, keep=None, allocation="uniform")
    worth_DLE = np.array([[[0.4, 0.3, 0.2, 0.1]]])
    assert lower_bound(worth_DLE, budget) == pytest.approx(0.3, abs=1.1e-9)


def test_a_domain_that_no_plan_can_spare_sets_the_bound():
    """Two may leave of each layer; domain 1 holds nothing but those two."""
    budget = Budget.of(facts([4, 4], top_k=1), ratio=0.5, keep=None, allocation="uniform")
    worth_DLE = np.array(
        [[[0.25, 0.25, 0.25, 0.25]] * 2, [[0.1, 0.2, 0.3, 0.4]] * 2, [[0.4, 0.3, 0.2, 0.1]] * 2]
    )
    assert lower_bound(worth_DLE, budget) == pytest.approx(0.5, abs=1.1e-9)

"""mesa-exact against every plan there is, and what it proves against itself."""

import os
import time

import numpy as np
import pytest
from brute import cases, losses
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import facts

from moeprune.allocators import mesa, mesa_exact
from moeprune.allocators._core import core_of
from moeprune.allocators._problem import Problem
from moeprune.allocators._program import solve
from moeprune.core.budget import Budget
from moeprune.core.choice import domain_loss
from moeprune.errors import UsageError

CLOSE = 1e-9


def dispersed(domains, rows, experts, seed, *, spread=0.06):
    """Over-dispersed router mass, rows normalised to 1: each expert within some percent."""
    rng = np.random.default_rng(seed)
    shared_LE = rng.normal(size=(1, rows, experts)) * spread
    mass_DLE = np.exp(shared_LE + rng.normal(size=(domains, rows, experts)) * spread)
    return mass_DLE / mass_DLE.sum(axis=2, keepdims=True)


def budget_of(experts, **asked):
    return Budget.of(facts(experts, top_k=2), **{"keep": None, "allocation": "uniform", **asked})


def exact(worth_DLE, budget, **options):
    return mesa_exact.allocate(
        worth_DLE.mean(axis=0), worth_DLE=worth_DLE, budget=budget, **options
    )


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_no_plan_loses_less(case):
    """The worst loss first, then the mean: both the least there is."""
    if case is None:
        return
    worth_DLE, budget = case
    found = exact(worth_DLE, budget, gap=0.0)
    total = int(np.sum(budget.num_experts) - found.keep_LE.sum())
    loss_PD = losses(worth_DLE, budget, total)
    least = loss_PD.max(axis=1).min()
    loss_D = domain_loss(worth_DLE, found.keep_LE)
    assert loss_D.max() == pytest.approx(least, rel=CLOSE, abs=0)
    # Tied is what the allocator says: a worst loss as low as that of its plan, to rounding.
    tied_PD = loss_PD[loss_PD.max(axis=1) <= loss_D.max() * (1 + 1e-12)]
    assert loss_D.mean() == pytest.approx(tied_PD.mean(axis=1).min(), rel=1e-6, abs=0)
    assert not found.details["time_limit_hit"]
    assert found.details["bound"] <= least * (1 + 1e-12)
    assert found.details["bound"] <= found.details["worst_loss"]
    assert found.details["mean_bound"] <= found.details["mean_loss"]
    assert found.details["worst_loss"] == pytest.approx(loss_D.max(), rel=1e-8, abs=1e-12)
    assert found.details["mean_loss"] == pytest.approx(loss_D.mean(), rel=1e-8, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_the_plan_is_one_that_the_budget_allows(case):
    if case is None:
        return
    worth_DLE, budget = case
    keep_LE = exact(worth_DLE, budget).keep_LE
    mesa_LE = mesa.allocate(worth_DLE.mean(axis=0), worth_DLE=worth_DLE, budget=budget).keep_LE
    assert keep_LE.sum() == mesa_LE.sum()
    for row, (count, most) in enumerate(zip(budget.num_experts, budget.max_remove, strict=True)):
        kept_E = keep_LE[row, :count]
        assert not keep_LE[row, count:].any()
        assert kept_E.all() or kept_E.sum() % budget.unit == 0
        assert count - kept_E.sum() <= most
        assert budget.allocation == "global" or count - kept_E.sum() == most
        assert len(set(kept_E.reshape(budget.num_groups, -1).sum(axis=1))) == 1
        if budget.protected:
            assert kept_E[list(budget.protected[row])].all()


@settings(max_examples=100, deadline=None)
@given(case=cases(), share=st.floats(0, 0.2))
def test_the_core_loses_no_good_plan(case, share):
    """What is fixed is so in every plan within the limit; and the solver finds the best of them."""
    if case is None:
        return
    worth_DLE, budget = case
    score_LE = worth_DLE.mean(axis=0)
    total = int((~mesa.allocate(score_LE, worth_DLE=worth_DLE, budget=budget).keep_LE).sum())
    total -= int(np.sum(max(budget.num_experts) - np.array(budget.num_experts)))
    problem = Problem(worth_DLE, budget, total=total)
    least = losses(worth_DLE, budget, total).max(axis=1).min()
    weight_D = np.random.default_rng(0).dirichlet(np.ones(len(worth_DLE)))
    core = core_of(problem, weight_D, limit=least * (1 + share))
    solved = solve(
        problem, core, worst=True, low=0.0, high=least * (1 + share) + 1e-9, gap=0.0, seconds=60
    )
    if core.free_N.any():
        assert problem.loss_D(solved.leave_N).max() == pytest.approx(least, abs=1e-6)
    else:
        assert problem.loss_D(core.leave_N).max() == pytest.approx(least, abs=1e-12)


@pytest.mark.parametrize("allocation", ["uniform", "global"])
@pytest.mark.parametrize(
    ("experts", "ratio", "gap"), [(32, 0.125, 5e-4), (32, 0.5, 2e-4), (64, 0.25, 2e-4)]
)
def test_over_dispersed_models_are_solved_to_the_gap(allocation, experts, ratio, gap):
    worth_DLE = dispersed(6, 12, experts, seed=1)
    budget = budget_of([experts] * 12, ratio=ratio, allocation=allocation)
    found = exact(worth_DLE, budget, gap=gap)
    worst = domain_loss(worth_DLE, found.keep_LE).max()
    heuristic = mesa.allocate(worth_DLE.mean(axis=0), worth_DLE=worth_DLE, budget=budget).keep_LE
    assert worst <= domain_loss(worth_DLE, heuristic).max()
    assert found.details["gap"] <= gap
    assert found.details["bound"] <= worst <= found.details["bound"] / (1 - gap) + 1e-12
    assert not found.details["time_limit_hit"]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(4, 20)),
    allocation=st.sampled_from(["uniform", "global"]),
    percent=st.integers(25, 50),  # of 4 experts, 2 must stay
)
def test_never_worse_than_mesa_even_without_the_solver(seed, shape, allocation, percent):
    worth_DLE = dispersed(*shape, seed, spread=0.5)
    budget = budget_of([shape[2]] * shape[1], ratio=percent / 100, allocation=allocation)
    heuristic = mesa.allocate(worth_DLE.mean(axis=0), worth_DLE=worth_DLE, budget=budget).keep_LE
    found = exact(worth_DLE, budget, time_limit=0.0)
    most = domain_loss(worth_DLE, heuristic).max()
    assert domain_loss(worth_DLE, found.keep_LE).max() <= most + 1e-13
    assert found.details["bound"] <= most
    assert not found.details["time_limit_hit"]  # nothing that a slower machine would do otherwise


def test_permuted_experts_are_another_name_for_the_same_plan():
    worth_DLE = dispersed(4, 4, 12, seed=3)
    budget = budget_of([12] * 4, ratio=0.25)
    order_LE = np.random.default_rng(5).permuted(np.tile(np.arange(12), (4, 1)), axis=1)
    moved_DLE = np.take_along_axis(worth_DLE, order_LE[None], axis=2)
    one, two = exact(worth_DLE, budget, gap=0.0), exact(moved_DLE, budget, gap=0.0)
    assert np.array_equal(np.take_along_axis(one.keep_LE, order_LE, axis=1), two.keep_LE)
    assert one.details["worst_loss"] == pytest.approx(two.details["worst_loss"], abs=1e-12)


def test_a_permuted_layer_order_loses_as_little():
    worth_DLE = dispersed(4, 5, 12, seed=4)
    budget = budget_of([12] * 5, ratio=0.25, allocation="global")
    one, two = exact(worth_DLE, budget, gap=0.0), exact(worth_DLE[:, ::-1], budget, gap=0.0)
    assert np.array_equal(one.keep_LE[::-1], two.keep_LE)


def test_the_time_limit_is_kept_and_stated():
    worth_DLE = dispersed(6, 24, 32, seed=0)
    budget = budget_of([32] * 24, ratio=0.125)
    begun = time.monotonic()
    found = exact(worth_DLE, budget, gap=0.0, time_limit=1.0)
    assert time.monotonic() - begun < 10  # a second, and what a busy machine adds
    assert found.details["time_limit_hit"]
    assert found.details["gap"] > 0


def test_the_solver_prints_nothing(capfd):
    """HiGHS prints by itself what it does to some solutions."""
    worth_DLE = dispersed(6, 24, 32, seed=0)
    exact(worth_DLE, budget_of([32] * 24, ratio=0.125), time_limit=2.0)
    os.write(1, b"still open\n")
    assert capfd.readouterr().out == "still open\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gap": -1e-3}, "--gap -0.001"),
        ({"gap": 1.0}, "--gap 1.0"),
        ({"gap": float("nan")}, "--gap nan"),
        ({"time_limit": -1.0}, "--time-limit -1.0"),
        ({"time_limit": float("inf")}, "--time-limit inf"),
    ],
)
def test_bad_options(options, says):
    with pytest.raises(UsageError) as error:
        exact(dispersed(2, 1, 8, seed=0), budget_of([8], ratio=0.5), **options)
    assert says in str(error.value)

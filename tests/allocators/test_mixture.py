"""Schemes of layers within a budget: the best there is, never a byte too many, and a bound."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.allocators import _mixture
from moeprune.allocators._mixture import solve
from moeprune.core.mixture import Mixture


@st.composite
def problems(draw: st.DrawFn) -> Mixture:
    loss, nbytes = [], []
    unit = draw(st.sampled_from([1.0, 1e-9, 0.1, 1e12]))
    most = draw(st.sampled_from([4, 60, 10**15]))
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 6))
        several = {"min_size": size, "max_size": size}
        losses = draw(st.lists(st.integers(0, draw(st.sampled_from([2, 10**6]))), **several))
        loss.append(np.array(losses) * unit)
        nbytes.append(np.array(draw(st.lists(st.integers(0, most), **several)), dtype=np.int64))
    low, high = (sum(int(f(each)) for each in nbytes) for f in (np.min, np.max))
    return Mixture(
        loss=tuple(loss), nbytes=tuple(nbytes), budget=draw(st.integers(low, max(low, high)))
    )


def all_choices(problem: Mixture):
    """(loss, bytes) of everything that could be chosen, one by one."""
    for choice in itertools.product(*(range(each.size) for each in problem.loss)):
        picked = list(enumerate(choice))
        yield (
            sum(float(problem.loss[row][x]) for row, x in picked),
            sum(int(problem.nbytes[row][x]) for row, x in picked),
        )


def least_loss(problem: Mixture) -> float:
    return min(loss for loss, size in all_choices(problem) if size <= problem.budget)


@settings(max_examples=400)
@given(problem=problems())
def test_the_choice_is_the_best_within_the_budget(problem):
    found = solve(problem)
    assert found.nbytes == problem.bytes_of(found.choice) <= problem.budget
    assert found.loss == problem.loss_of(found.choice)
    assert found.loss == pytest.approx(least_loss(problem), rel=1e-11)
    assert found.bound == pytest.approx(found.loss, rel=1e-11)


@settings(max_examples=300)
@given(problem=problems(), states=st.integers(1, 4))
def test_without_room_the_bound_still_holds(problem, states):
    found = solve(problem, most_states=states)
    least = least_loss(problem)
    assert found.nbytes <= problem.budget
    assert found.bound <= least * (1 + 1e-11) <= found.loss * (1 + 2e-11)


def test_a_layer_takes_what_is_left_to_the_last_byte():
    loss = (np.array([9.0, 5.0, 0.0]), np.array([9.0, 5.0, 0.0]))
    nbytes = (np.array([10, 20, 40]), np.array([10, 20, 41]))
    assert solve(Mixture(loss, nbytes, 50)).choice == (2, 0)
    assert solve(Mixture(loss, nbytes, 51)).choice in {(2, 0), (0, 2)}
    assert solve(Mixture(loss, nbytes, 49)).choice == (1, 1)
    assert solve(Mixture(loss, nbytes, 81)).choice == (2, 2)
    assert solve(Mixture(loss, nbytes, 20)).choice == (0, 0)


def test_large_problems_equal_a_solver_of_integer_programs():
    from scipy.optimize import Bounds, LinearConstraint, milp

    rng = np.random.default_rng(3)
    layers, experts = 24, 32
    loss, nbytes = [], []
    for _ in range(layers):
        worth = np.sort(rng.lognormal(0, 1, experts))
        gone = np.append(0.0, np.cumsum(worth))[: experts // 2]
        kept = experts - np.arange(experts // 2)
        each = [
            (gone + (worth.sum() - gone) * error, kept * size)
            for error, size in ((0.0, 1600), (0.006, 833), (rng.uniform(0.05, 0.15), 471))
        ]
        loss.append(np.concatenate([losses for losses, _ in each]))
        nbytes.append(np.concatenate([sizes for _, sizes in each]).astype(np.int64))
    budget = int(sum(each.max() for each in nbytes) * 0.41)
    found = solve(Mixture(tuple(loss), tuple(nbytes), budget))
    flat, size = np.concatenate(loss), loss[0].size
    rows = np.kron(np.eye(layers), np.ones(size))
    other = milp(
        flat,
        integrality=np.ones(flat.size),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(rows, 1, 1),
            LinearConstraint(np.concatenate(nbytes)[None, :] / 1000, -np.inf, budget / 1000),
        ],
        options={"mip_rel_gap": 0.0},
    )
    assert found.loss == pytest.approx(other.fun, rel=1e-7)
    assert found.bound == pytest.approx(found.loss, rel=1e-11)


def test_two_runs_are_the_same_and_ties_end(monkeypatch):
    equal = Mixture((np.ones(3),) * 40, (np.array([5, 5, 7]),) * 40, 240)
    assert solve(equal) == solve(equal)
    assert solve(equal).choice == (0,) * 40
    # Halves that only add up in one way: the bound of the relaxation does not decide it.
    odd = np.arange(1, 31, dtype=np.int64) * 2 + 1
    halves = Mixture(
        tuple(np.array([float(n), 0.0]) for n in odd),
        tuple(np.array([0, n]) for n in odd),
        int(odd.sum()) // 2,
    )
    monkeypatch.setattr(_mixture, "_FEW_STATES", 3)
    found = solve(halves)
    assert found.loss == odd.sum() - odd.sum() // 2
    assert found.nbytes == odd.sum() // 2

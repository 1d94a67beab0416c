"""minimax against every plan there is: shares of a domain's whole worth, over all layers."""

import numpy as np
import pytest
from brute import cases, losses
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import facts

from moeprune.allocators import minimax
from moeprune.core.budget import Budget
from moeprune.core.choice import domain_loss
from moeprune.errors import UsageError


def scaled(worth_DLE, seed):
    """Layers and domains of sizes of their own, as sums of a loss have: no row sums to 1."""
    rng = np.random.default_rng(seed)
    layer_DL = 10.0 ** rng.uniform(-3, 3, worth_DLE.shape[:2])
    return worth_DLE * layer_DL[..., None] * 10.0 ** rng.uniform(-6, 6, (len(worth_DLE), 1, 1))


def best(worth_DLE, budget, **options):
    whole_D11 = worth_DLE.sum(axis=(1, 2), keepdims=True)
    score_LE = (worth_DLE / whole_D11).mean(axis=0)
    return minimax.allocate(score_LE, worth_DLE=worth_DLE, budget=budget, **options)


@settings(max_examples=100, deadline=None)
@given(case=cases(), seed=st.integers(0, 10**6))
def test_no_plan_loses_a_smaller_share(case, seed):
    """The worst share first, then the mean: both the least there is."""
    if case is None:
        return
    worth_DLE, budget = scaled(case[0], seed), case[1]
    found = best(worth_DLE, budget, gap=0.0)
    total = int(np.sum(budget.num_experts) - found.keep_LE.sum())
    loss_PD = losses(worth_DLE, budget, total)
    least = loss_PD.max(axis=1).min()
    loss_D = domain_loss(worth_DLE, found.keep_LE)
    # The solver's tolerance is a millionth of what an expert that leaves costs on average.
    assert loss_D.max() == pytest.approx(least, rel=1e-5, abs=1e-15)
    tied_PD = loss_PD[loss_PD.max(axis=1) <= loss_D.max() * (1 + 1e-12)]
    assert loss_D.mean() == pytest.approx(tied_PD.mean(axis=1).min(), rel=1e-5, abs=1e-15)
    assert found.details["bound"] <= least * (1 + 1e-12)
    assert found.details["mean_bound"] <= found.details["mean_loss"]
    assert not found.details["time_limit_hit"]


@settings(max_examples=30, deadline=None)
@given(case=cases(), seed=st.integers(0, 10**6), factor=st.sampled_from([2.0**-40, 2.0**30]))
def test_only_shares_count(case, seed, factor):
    """A domain whose loss is a million times as large weighs as much as the others."""
    if case is None:
        return
    worth_DLE, budget = scaled(case[0], seed), case[1]
    score_LE = worth_DLE.mean(axis=0)
    other_DLE = worth_DLE.copy()
    other_DLE[0] *= factor
    one, two = (
        minimax.allocate(score_LE, worth_DLE=each, budget=budget) for each in (worth_DLE, other_DLE)
    )
    assert np.array_equal(one.keep_LE, two.keep_LE)
    assert one.details == two.details


def test_layers_of_little_worth_give_most():
    """Rows of a domain are not scaled alike: that is what tells it from mesa-exact."""
    worth_DLE = np.ones((2, 2, 8))
    worth_DLE[:, 1] *= 100.0
    budget = Budget.of(facts([8, 8], top_k=2), ratio=0.375, keep=None, allocation="global")
    keep_LE = best(worth_DLE, budget).keep_LE
    assert keep_LE.sum(axis=1).tolist() == [2, 8]


def test_a_domain_of_zeros_has_nothing_to_lose():
    worth_DLE = np.zeros((3, 2, 6))
    worth_DLE[1] = np.arange(12).reshape(2, 6) + 1.0
    budget = Budget.of(facts([6, 6], top_k=2), ratio=0.5, keep=None, allocation="uniform")
    found = minimax.allocate(worth_DLE.sum(axis=0), worth_DLE=worth_DLE, budget=budget)
    assert [np.flatnonzero(row).tolist() for row in ~found.keep_LE] == [[0, 1, 2], [0, 1, 2]]
    nothing = minimax.allocate(np.zeros((2, 6)), worth_DLE=np.zeros((2, 2, 6)), budget=budget)
    assert nothing.keep_LE.sum(axis=1).tolist() == [3, 3]
    assert nothing.details["worst_loss"] == nothing.details["gap"] == 0


@pytest.mark.parametrize(
    ("options", "says"), [({"gap": 1.0}, "--gap 1.0"), ({"time_limit": -1.0}, "--time-limit -1.0")]
)
def test_bad_options(options, says):
    budget = Budget.of(facts([8], top_k=2), ratio=0.5, keep=None, allocation="uniform")
    with pytest.raises(UsageError) as error:
        best(np.ones((2, 1, 8)), budget, **options)
    assert says in str(error.value)

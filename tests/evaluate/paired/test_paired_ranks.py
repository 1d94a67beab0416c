"""Correlations and their permutation p against scipy and all orders gone through one by one."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moeprune.errors import MismatchError, UsageError
from moeprune.evaluate.paired.ranks import (
    DRAWS,
    EXACT_UP_TO,
    average_ranks,
    pearson,
    r,
    rho,
    spearman,
)

PPL = [126.02, 107.14, 145.04, 83.29, 40.95]
GSM8K = [88.86, 92.87, 89.31, 83.24, 78.54]
GPQA = [64.47, 65.48, 47.72, 56.85, 49.75]

VALUES = st.integers(-3, 3)


def two_lists(least, most):
    return st.integers(least, most).flatmap(
        lambda n: st.tuples(*[st.lists(VALUES, min_size=n, max_size=n)] * 2)
    )


def slow_p(statistic, one, other):
    seen = abs(statistic(one, other))
    orders = list(itertools.permutations(other))
    return sum(abs(statistic(one, order)) >= seen - 1e-9 for order in orders) / len(orders)


def test_the_papers_perplexity_against_accuracy():
    found = spearman(PPL, GSM8K)
    assert found.value == 0.7
    assert found.p == pytest.approx(28 / 120)  # the paper: p > 0.1
    assert found.method == "exact"
    assert spearman(PPL, GPQA).value == pytest.approx(-0.1, abs=1e-15)


@given(st.lists(VALUES, min_size=1, max_size=20))
def test_ranks(values):
    assert np.array_equal(average_ranks(values), scipy.stats.rankdata(values))


@given(two_lists(2, 15))
def test_values_are_those_of_scipy(lists):
    one, other = lists
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert rho(one, other) is None
        assert r(one, other) is None
        found = spearman(one, other)
        assert (found.value, found.p, found.method) == (None, 1, "none")
        return
    assert rho(one, other) == pytest.approx(scipy.stats.spearmanr(one, other)[0], abs=1e-12)
    assert r(one, other) == pytest.approx(scipy.stats.pearsonr(one, other)[0], abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(two_lists(2, 6))
def test_p_is_the_share_of_all_orders(lists):
    one, other = lists
    assume(len(set(one)) > 1 and len(set(other)) > 1)
    found = spearman(one, other)
    assert found.p == slow_p(lambda x, y: scipy.stats.spearmanr(x, y)[0], one, other)
    found = pearson(one, other)
    assert found.p == slow_p(lambda x, y: scipy.stats.pearsonr(x, y)[0], one, other)


def test_exact_p_is_that_of_scipys_permutation_test():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 7))
    want = scipy.stats.permutation_test(
        (other,),
        lambda order: scipy.stats.spearmanr(one, order)[0],
        permutation_type="pairings",
        n_resamples=np.inf,
    ).pvalue
    # scipy doubles the smaller tail; the null distribution of ρ is symmetric without ties.
    assert spearman(one, other).p == pytest.approx(want, abs=1e-3)


@given(two_lists(2, 8))
def test_symmetries(lists):
    one, other = lists
    for test in (spearman, pearson):
        assert test(one, other).p == pytest.approx(test(other, one).p)
        turned = test(one, [-x for x in other])
        assert turned.p == pytest.approx(test(one, other).p)
        if turned.value is not None:
            assert turned.value == pytest.approx(-test(one, other).value)
            assert 0 < turned.p <= 1


def test_perfect_order_has_the_smallest_p():
    for size, orders in ((2, 2), (5, 120), (EXACT_UP_TO, 40_320)):
        found = spearman(range(size), np.arange(size) ** 3)
        assert (found.value, found.p) == (1.0, 2 / orders)


def test_beyond_all_orders_they_are_drawn_with_a_seed():
    rng = np.random.default_rng(1)
    one = rng.normal(size=30)
    other = one + 2 * rng.normal(size=30)
    found = spearman(one, other)
    assert found.method == "drawn"
    assert found.p == pytest.approx(scipy.stats.spearmanr(one, other)[1], abs=0.004)
    assert spearman(one, other) == found
    assert spearman(one, other, seed=1).p != found.p
    assert pearson(one, other).p == pytest.approx(scipy.stats.pearsonr(one, other)[1], abs=0.004)
    assert spearman(one, one).p == 1 / (DRAWS + 1)


def test_extreme_values():
    huge = [1e300, 2e300, 4e300, -1e300]
    tiny = [1e-300, 2e-300, 4e-300, -1e-300]
    assert r(huge, tiny) == pytest.approx(1)
    assert rho(huge, tiny) == 1
    assert r([0.1] * 3, [1, 2, 3]) is None
    assert spearman([], []).value is None
    assert spearman([1], [2]).value is None


def test_what_cannot_be_paired_is_refused_in_one_line():
    with pytest.raises(MismatchError, match="2 and 3 values"):
        spearman([1, 2], [1, 2, 3])
    with pytest.raises(MismatchError, match="2 and 3 values"):
        pearson([1, 2], [1, 2, 3])
    with pytest.raises(UsageError, match="NaN or infinity"):
        spearman([1, float("nan")], [1, 2])

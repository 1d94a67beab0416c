"""Two accuracies without their answers: against statsmodels and the paper's z."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import confint_proportions_2indep, proportions_ztest

from moeprune.errors import UsageError
from moeprune.evaluate.paired.proportions import two_proportions


def test_the_papers_gpqa():
    found = two_proportions(0.4772, 0.6548, n=198)
    assert round(found.z, 2) == 3.57
    assert found.p < 0.001
    assert found.difference == pytest.approx(0.1776)
    assert 0 not in found.interval


@given(st.integers(1, 500), st.integers(1, 500), st.floats(0, 1), st.floats(0, 1))
def test_as_statsmodels_does(n, other, one_share, other_share):
    right, right_other = round(one_share * n), round(other_share * other)
    found = two_proportions(right / n, right_other / other, n=n, n_variant=other)
    if 0 < right + right_other < n + other:
        z, p = proportions_ztest([right_other, right], [other, n])
        assert found.z == pytest.approx(z, abs=1e-9)
        assert found.p == pytest.approx(p, rel=1e-6)
    low, high = confint_proportions_2indep(right_other, other, right, n, method="newcomb")
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), abs=1e-9)
    assert found.difference in found.interval


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 10**6))
def test_exchanging_them_turns_the_sign(one, other, n):
    found, turned = two_proportions(one, other, n=n), two_proportions(other, one, n=n)
    assert (turned.z, turned.p) == pytest.approx((-found.z, found.p))
    assert turned.interval.low == pytest.approx(-found.interval.high)
    assert 0 < found.p <= 1


def test_edges():
    same = two_proportions(1.0, 1.0, n=5)
    assert (same.z, same.p) == (0, 1)
    assert same.interval.low < 0 < same.interval.high
    assert two_proportions(0, 1, n=10**6).p > 0
    assert math.isfinite(two_proportions(0, 1, n=1).z)


def test_what_cannot_be_is_refused_in_one_line():
    with pytest.raises(UsageError, match=r"fraction in \[0, 1\]; got 47.72"):
        two_proportions(47.72, 65.48, n=198)
    with pytest.raises(UsageError, match="at least 1"):
        two_proportions(0.5, 0.5, n=0)
    with pytest.raises(UsageError, match="confidence level"):
        two_proportions(0.5, 0.5, n=5, level=0)

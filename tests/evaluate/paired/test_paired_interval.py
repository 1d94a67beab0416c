"""Intervals against a maximised likelihood, statsmodels, published tables, and their coverage."""

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from moeprune.errors import UsageError
from moeprune.evaluate.paired.interval import Interval, tango, two_sided_z, wilson
from moeprune.evaluate.paired.mcnemar import McNemar

COUNTS = st.tuples(*[st.integers(0, 60)] * 3).filter(sum)
LEVELS = st.floats(0.01, 0.999)


def slow_score(b, c, n, delta):
    """Tango's score with the nuisance probability found by maximising the likelihood."""

    def loss(q):  # q = P(flip to wrong)
        cells = ((c, q + delta), (b, q), (n - b - c, 1 - 2 * q - delta))
        return -sum(k * math.log(max(p, 1e-300)) for k, p in cells if k)

    bounds = (max(0.0, -delta), (1 - delta) / 2)
    q = scipy.optimize.minimize_scalar(
        loss, bounds=bounds, method="bounded", options={"xatol": 1e-13}
    ).x
    return (c - b - n * delta) / math.sqrt(n * (2 * q + delta * (1 - delta)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 200), st.sampled_from([0.8, 0.95]))
def test_tango_limits_are_where_the_score_is_z(b, c, same, level):
    n = b + c + same
    interval = tango(b, c, n, level=level)
    z = scipy.stats.norm.ppf((1 + level) / 2)
    assert slow_score(b, c, n, interval.low) == pytest.approx(z, abs=2e-4)
    assert slow_score(b, c, n, interval.high) == pytest.approx(-z, abs=2e-4)


def test_tango_of_published_tables():
    # Fagerland, Lydersen and Laake 2014: 1 and 7 flips of 21 pairs, -0.517 to -0.026.
    interval = tango(7, 1, 21)
    assert (interval.low, interval.high) == pytest.approx((-0.517, -0.026), abs=5e-4)


@given(COUNTS, LEVELS)
def test_tango_contains_the_estimate_and_mirrors(counts, level):
    b, c, same = counts
    n = b + c + same
    interval = tango(b, c, n, level=level)
    assert -1 <= interval.low <= (c - b) / n <= interval.high <= 1
    mirrored = tango(c, b, n, level=level)
    assert (mirrored.low, mirrored.high) == (-interval.high, -interval.low)
    wider = tango(b, c, n, level=(1 + level) / 2)
    assert wider.low <= interval.low
    assert interval.high <= wider.high


@given(COUNTS)
def test_tango_excludes_no_difference_exactly_where_chi2_rejects(counts):
    b, c, same = counts
    test = McNemar(b, c, b + c + same)
    if abs(test.chi2_p - 0.05) > 1e-9:
        assert (0.0 in tango(b, c, test.n)) == (test.chi2_p > 0.05)


@pytest.mark.parametrize("n", [1, 2, 10, 10**6])
def test_tango_without_a_flip_is_the_score_interval_of_none_in_n(n):
    z2 = scipy.stats.norm.ppf(0.975) ** 2
    interval = tango(0, 0, n)
    assert interval.high == pytest.approx(z2 / (n + z2), rel=1e-9)
    assert interval.low == -interval.high
    assert interval.high == pytest.approx(wilson(0, n).high, rel=1e-9)


def test_tango_at_the_edges():
    assert tango(0, 0, 0) == Interval(-1.0, 1.0, 0.95)
    assert tango(0, 5, 5).high == 1
    assert tango(5, 0, 5).low == -1
    assert 0 not in tango(5, 0, 5)
    one = tango(1, 0, 1)
    assert one.low == -1
    assert 0 < one.high < 1


@pytest.mark.parametrize("n", [10, 40])
def test_tango_covers_the_truth(n):
    """Exact coverage: the probability of every table whose interval holds the true difference."""
    tables = [(b, c, n - b - c) for b in range(n + 1) for c in range(n + 1 - b)]
    intervals = [tango(b, c, n) for b, c, _ in tables]
    found = []
    for down, up in itertools.product((0.0, 0.01, 0.03, 0.1, 0.2, 0.4), repeat=2):
        cells = [down, up, 1 - down - up]
        held = np.array([up - down in interval for interval in intervals])
        found.append(scipy.stats.multinomial.pmf(tables, n, cells) @ held)
    assert min(found) > 0.92
    assert 0.95 < np.mean(found) < 0.99


@given(st.integers(0, 300), st.integers(1, 300), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_wilson_is_that_of_statsmodels(right, more, level):
    n = right + more - 1 or 1
    interval = wilson(right, n, level=level)
    low, high = proportion_confint(right, n, alpha=1 - level, method="wilson")
    assert (interval.low, interval.high) == pytest.approx((max(0, low), min(1, high)), abs=1e-12)
    assert right / n in interval
    mirrored = wilson(n - right, n, level=level)
    assert mirrored.low == pytest.approx(1 - interval.high, abs=1e-12)


def test_wilson_at_the_edges():
    assert wilson(0, 0) == Interval(0.0, 1.0, 0.95)
    assert wilson(0, 10).low == 0
    assert wilson(10, 10).high == 1
    assert wilson(0, 10**9).high < 1e-8


@given(LEVELS)
def test_two_sided_z(level):
    assert two_sided_z(level) == pytest.approx(scipy.stats.norm.ppf((1 + level) / 2), rel=1e-9)


def test_an_interval_scales_and_contains():
    interval = Interval(-0.02, 0.01, 0.9).scaled(100)
    assert (interval.low, interval.high, interval.level) == (-2, 1, 0.9)
    assert interval.half_width == 1.5
    assert 0 in interval
    assert np.int64(1) in interval
    assert np.float64(-2) in interval
    assert -3 not in interval
    assert "0" not in interval


def test_what_cannot_be_is_refused_in_one_line():
    with pytest.raises(UsageError, match="confidence level must lie between 0 and 1"):
        tango(1, 1, 5, level=1)
    with pytest.raises(UsageError, match="confidence level"):
        wilson(1, 5, level=95)
    with pytest.raises(UsageError, match="6 right answers cannot come from 5"):
        wilson(6, 5)
    with pytest.raises(UsageError, match="flips cannot come from"):
        tango(3, 3, 5)

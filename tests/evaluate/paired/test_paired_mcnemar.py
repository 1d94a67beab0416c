"""McNemar against scipy, statsmodels, exact fractions, and the flips that the papers print."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from moeprune.errors import MismatchError, UsageError
from moeprune.evaluate.paired.mcnemar import EXACT_UP_TO, McNemar, binomial_half_cdf

FLIPS = st.tuples(st.integers(0, 400), st.integers(0, 400))


def cdf(successes, trials):
    return sum(Fraction(math.comb(trials, k), 2**trials) for k in range(successes + 1))


@given(FLIPS)
def test_every_p_is_that_of_scipy_and_statsmodels(flips):
    b, c = flips
    test = McNemar(b, c, b + c + 10)
    table = [[5, b], [c, 5]]
    if b + c:
        assert test.exact_p == pytest.approx(scipy.stats.binomtest(b, b + c).pvalue, rel=1e-11)
        assert test.exact_p == pytest.approx(statsmodels_mcnemar(table).pvalue, rel=1e-9)
        plain = statsmodels_mcnemar(table, exact=False, correction=False)
        assert (test.chi2, test.chi2_p) == pytest.approx((plain.statistic, plain.pvalue))
        assert test.chi2_p == pytest.approx(scipy.stats.chi2.sf(test.chi2, 1))
    if b != c:  # statsmodels corrects b = c beyond 0
        corrected = statsmodels_mcnemar(table, exact=False, correction=True)
        assert test.chi2_corrected == pytest.approx(corrected.statistic)
        assert test.chi2_corrected_p == pytest.approx(corrected.pvalue)
    assert test.p == test.exact_p
    assert test.method == "exact"


@given(st.integers(0, 60), st.integers(0, 60))
def test_exact_and_mid_p_in_exact_fractions(b, c):
    test = McNemar(b, c, 120)
    least, flips = min(b, c), b + c
    exact = min(Fraction(1), 2 * cdf(least, flips))
    point = Fraction(math.comb(flips, least), 2**flips)
    # The two-sided mid-p counts the outcome, and its mirror, half; they are one where b = c.
    mid = Fraction(1) if b == c else 2 * cdf(least, flips) - point
    assert test.exact_p == pytest.approx(float(exact), rel=1e-12)
    assert test.mid_p == pytest.approx(float(mid), rel=1e-12)


@given(FLIPS)
def test_exchanging_the_runs_turns_the_sign_and_keeps_p(flips):
    b, c = flips
    one, other = McNemar(b, c, 1000), McNemar(c, b, 1000)
    for name in ("p", "exact_p", "mid_p", "chi2_p", "chi2_corrected_p"):
        assert getattr(one, name) == getattr(other, name)
        assert 0 < getattr(one, name) <= 1
    assert one.points == -other.points
    assert one.mid_p <= one.exact_p


@pytest.mark.parametrize(
    ("b", "c", "p", "points"),
    [
        (99, 92, 0.66430, -0.35),  # "near-symmetric", indistinguishable
        (84, 29, 2.2008e-7, -2.75),  # the two "tell completely different stories"
        (44, 37, 0.50524, -0.35),
    ],
)
def test_flips_printed_in_the_paper_on_halved_experts(b, c, p, points):
    test = McNemar(b, c, 2000)
    assert test.p == pytest.approx(p, rel=1e-4)
    assert test.p == pytest.approx(float(2 * cdf(c, b + c)), rel=1e-12)
    assert test.points == pytest.approx(points, abs=1e-12)


def test_published_table():
    # Bentur et al. 2009 as in Fagerland, Lydersen and Laake 2013, table 1: b = 1, c = 7 of 21.
    test = McNemar(1, 7, 21)
    assert (test.chi2, test.chi2_corrected) == pytest.approx((4.5, 3.125))
    assert test.chi2_p == pytest.approx(0.034, abs=5e-4)
    assert test.chi2_corrected_p == pytest.approx(0.077, abs=5e-4)
    assert test.exact_p == pytest.approx(0.070, abs=5e-4)
    assert test.mid_p == pytest.approx(0.039, abs=5e-4)


def test_counted_from_answers():
    baseline = np.array([1, 1, 1, 0, 0, 1, 0], dtype=bool)
    variant = np.array([1, 0, 0, 1, 0, 1, 0], dtype=bool)
    test = McNemar.of(baseline, variant)
    assert (test.b, test.c, test.n) == (2, 1, 7)
    assert test.difference == pytest.approx(variant.mean() - baseline.mean())
    assert test.discordant == pytest.approx(3 / 7)
    assert McNemar.of(baseline.astype(float), variant.tolist()) == test


def test_nothing_flipped_says_nothing():
    for test in (McNemar(0, 0, 5), McNemar(0, 0, 0), McNemar.of([], [])):
        assert (test.p, test.mid_p, test.chi2, test.chi2_p, test.points) == (1, 1, 0, 1, 0)


def test_beyond_the_exact_limit_chi2_takes_over_without_a_step():
    last = McNemar(EXACT_UP_TO // 2 + 100, EXACT_UP_TO // 2 - 100, 20_000)
    first = McNemar(EXACT_UP_TO // 2 + 101, EXACT_UP_TO // 2 - 100, 20_000)
    assert (last.method, first.method) == ("exact", "chi2-corrected")
    assert first.p == pytest.approx(first.exact_p, rel=5e-4)
    assert last.p == pytest.approx(first.p, rel=0.05)


def test_huge_counts_stay_probabilities():
    for b, c in ((500_000, 500_000), (10**6, 0), (9_000, 0), (499_000, 501_000)):
        test = McNemar(b, c, 10**6)
        for p in (test.p, test.exact_p, test.mid_p, test.chi2_p, test.chi2_corrected_p):
            assert 0 < p <= 1
    normal = scipy.stats.binom.cdf(499_000, 10**6, 0.5)
    assert McNemar(499_000, 501_000, 10**6).exact_p == pytest.approx(2 * normal, rel=1e-9)


@given(st.integers(0, 50), st.integers(-2, 52))
def test_binomial_half_cdf(trials, successes):
    assert binomial_half_cdf(successes, trials) == pytest.approx(
        float(cdf(min(successes, trials), trials)), rel=1e-12
    )


def test_what_is_no_pair_of_runs_is_refused_in_one_line():
    with pytest.raises(UsageError, match=r"3 \+ 4 flips cannot come from 6"):
        McNemar(3, 4, 6)
    with pytest.raises(UsageError, match="b must be a whole number"):
        McNemar(-1, 0, 6)
    with pytest.raises(UsageError, match="c must be a whole number"):
        McNemar(1, 0.5, 6)
    with pytest.raises(UsageError, match="n must be a whole number"):
        McNemar(1, 0, float("nan"))
    with pytest.raises(UsageError, match="one list of answers"):
        McNemar.of([[1], [1, 0]], [1, 0])
    with pytest.raises(UsageError, match="other values"):
        McNemar.of([None, 1], [1, 0])
    with pytest.raises(MismatchError, match="2 and 3 values"):
        McNemar.of([1, 0], [1, 0, 1])
    with pytest.raises(UsageError, match=r"right \(1\) or wrong \(0\)"):
        McNemar.of([1, 0.5], [1, 0])
    with pytest.raises(UsageError, match="shape"):
        McNemar.of([[1, 0]], [[1, 0]])

"""What n questions resolve, against the paper's two numbers, the exact test and simulation."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.power import NormalIndPower

from moeprune.errors import UsageError
from moeprune.evaluate.paired.mcnemar import McNemar
from moeprune.evaluate.paired.resolution import (
    least_significant_flips,
    paired_questions,
    paired_resolution,
    resolution,
    unpaired_questions,
    unpaired_resolution,
)


def test_the_papers_two_numbers():
    found = resolution(2000, discordant=0.05, accuracy=0.597)
    assert round(100 * found.paired, 2) == 0.98
    assert round(100 * found.unpaired, 2) == 3.04
    assert found.unpaired == pytest.approx(unpaired_resolution(2000, accuracy=0.403))


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_at_even_power_it_is_z_times_the_standard_error(n, d):
    assert paired_resolution(n, discordant=d) == pytest.approx(
        1.959964 * math.sqrt(d / n), rel=1e-6
    )


@given(
    st.integers(20, 10**6),
    st.floats(0.01, 1),
    st.sampled_from([0.9, 0.95, 0.99]),
    st.sampled_from([0.5, 0.8, 0.9]),
)
def test_questions_and_difference_invert_each_other(n, d, level, power):
    delta = paired_resolution(n, discordant=d, level=level, power=power)
    if delta <= d and n >= least_significant_flips(level=level):
        needed = paired_questions(delta, discordant=d, level=level, power=power)
        assert abs(needed - n) <= 1
        assert needed == paired_questions(-delta, discordant=d, level=level, power=power)
    single = unpaired_resolution(n, accuracy=0.7, level=level, power=power)
    if single <= 1:
        assert abs(unpaired_questions(single, accuracy=0.7, level=level, power=power) - n) <= 1


def test_stated_power_is_the_power_seen():
    n, d = 2000, 0.08
    delta = paired_resolution(n, discordant=d, power=0.8)
    rng = np.random.default_rng(3)
    draws = rng.multinomial(n, [(d + delta) / 2, (d - delta) / 2, 1 - d], size=4000)
    b, c = draws[:, 0].astype(float), draws[:, 1]
    seen = np.mean((b - c) ** 2 / (b + c) > scipy.stats.chi2.ppf(0.95, 1))
    assert seen == pytest.approx(0.8, abs=0.02)


def test_unpaired_is_that_of_statsmodels():
    delta = unpaired_resolution(500, accuracy=0.6, power=0.8)
    effect = delta / math.sqrt(0.6 * 0.4)
    power = NormalIndPower().power(effect, 500, 0.05)
    assert power == pytest.approx(0.8, abs=1e-4)


@pytest.mark.parametrize(("level", "flips"), [(0.95, 6), (0.99, 8), (0.9, 5), (0.9375, 6)])
def test_least_flips_is_where_the_exact_test_first_rejects(level, flips):
    assert least_significant_flips(level=level) == flips
    assert McNemar(flips, 0, 100).p < 1 - level <= McNemar(flips - 1, 0, 100).p


def test_few_questions_resolve_no_less_than_the_least_flips():
    assert resolution(50).paired == pytest.approx(6 / 50)
    assert resolution(6).paired == 1
    assert resolution(5).paired is None
    assert resolution(1).paired is None
    assert resolution(1).unpaired is None
    assert unpaired_resolution(1, accuracy=0.5) > 1
    assert paired_questions(1.0, discordant=1.0, power=0.5) == 6


def test_more_questions_resolve_more():
    steps = [resolution(n, power=0.8).paired for n in (6, 50, 200, 1000, 10_000, 10**6)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < 0.001


def test_what_cannot_be_is_refused_in_one_line():
    with pytest.raises(UsageError, match="share of flips must be a fraction"):
        paired_resolution(10, discordant=5)
    with pytest.raises(UsageError, match="accuracy must be a fraction"):
        unpaired_resolution(10, accuracy=-0.1)
    with pytest.raises(UsageError, match="questions must be a whole number of at least 1"):
        paired_resolution(0, discordant=0.1)
    with pytest.raises(UsageError, match=r"power must lie in \[0.5, 1\)"):
        paired_questions(0.01, discordant=0.1, power=0.2)
    with pytest.raises(UsageError, match="needs at least that share of flips"):
        paired_questions(0.2, discordant=0.1)
    with pytest.raises(UsageError, match="other than 0"):
        unpaired_questions(0, accuracy=0.5)

"""Perplexity against accuracy (the paper's table 1), and paired over windows."""

import math
import sys

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from moeprune.errors import MismatchError, UsageError
from moeprune.evaluate.paired.perplexity import paired_perplexity, perplexity_beside

# Baseline, MESA, REAP, RM-Uniform, Random of tables 1 and 2.
PPL = [126.02, 107.14, 145.04, 83.29, 40.95]
GSM8K = [88.86, 92.87, 89.31, 83.24, 78.54]
GPQA = [64.47, 65.48, 47.72, 56.85, 49.75]


def test_the_papers_table_1():
    found = perplexity_beside(PPL, GSM8K)
    assert found.correlation.value == 0.7
    assert found.correlation.p > 0.1
    assert found.misleading
    # MESA better in both; REAP worse in perplexity, better on GSM8K; the others the reverse.
    assert found.disagree == (False, True, True, True)
    gpqa = perplexity_beside(PPL, GPQA)
    assert round(gpqa.correlation.value, 2) == -0.1
    assert not gpqa.misleading
    assert gpqa.disagree == (False, False, True, True)


def test_perplexity_that_does_what_it_should():
    found = perplexity_beside([4.78, 6.00, 8.31, 16.43], [66.6, 65.2, 58.0, 49.4])
    assert found.correlation.value == -1
    assert found.disagree == (False, False, False)
    assert not found.misleading
    assert perplexity_beside([5, 5, 6], [50, 40, 50]).disagree == (False, False)
    alone = perplexity_beside([5.0], [50.0])
    assert (alone.correlation.value, alone.disagree, alone.misleading) == (None, (), False)


def windows(seed, size):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(50, 2049, size=size)
    rate = rng.gamma(9, 0.3, size=size)
    return tokens * rate, tokens * (rate + rng.normal(0.02, 0.05, size=size)), tokens


@given(st.integers(0, 10**6), st.integers(2, 60))
def test_equal_windows_are_the_paired_t_test(seed, size):
    baseline, variant, _ = windows(seed, size)
    found = paired_perplexity(baseline, variant, tokens_W=np.full(size, 512))
    t = scipy.stats.ttest_rel(variant / 512, baseline / 512)
    interval = t.confidence_interval(0.95)
    assert found.p == pytest.approx(t.pvalue, rel=1e-6)
    assert (found.interval.low, found.interval.high) == pytest.approx((interval.low, interval.high))
    assert found.difference in found.interval


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_definitions(seed, size):
    baseline, variant, tokens = windows(seed, size)
    found = paired_perplexity(baseline, variant, tokens_W=tokens)
    assert found.baseline == pytest.approx(math.exp(baseline.sum() / tokens.sum()))
    assert found.variant == pytest.approx(math.exp(variant.sum() / tokens.sum()))
    assert found.ratio == pytest.approx(found.variant / found.baseline)
    assert found.tokens == tokens.sum()
    assert found.better + found.worse == found.windows == size
    turned = paired_perplexity(variant, baseline, tokens_W=tokens)
    assert turned.difference == pytest.approx(-found.difference)
    assert turned.p == pytest.approx(found.p)
    if size > 1:
        assert found.ratio in found.ratio_interval
        assert found.ratio_interval.low > 0


def test_the_error_is_that_of_the_jackknife():
    baseline, variant, tokens = windows(9, 400)
    found = paired_perplexity(baseline, variant, tokens_W=tokens)
    gap = variant - baseline
    left_out = (gap.sum() - gap) / (tokens.sum() - tokens)
    error = math.sqrt(399 / 400 * ((left_out - left_out.mean()) ** 2).sum())
    want = scipy.stats.t.ppf(0.975, 399) * error
    assert found.interval.half_width == pytest.approx(want, rel=0.02)


def test_pairing_sees_what_two_separate_means_cannot():
    baseline, variant, tokens = windows(1, 400)
    found = paired_perplexity(baseline, variant, tokens_W=tokens)
    assert found.p < 0.05 < scipy.stats.ttest_ind(baseline / tokens, variant / tokens).pvalue


def test_edges():
    single = paired_perplexity([100.0], [110.0], tokens_W=[50])
    assert (single.interval, single.ratio_interval, single.p) == (None, None, None)
    same = paired_perplexity([5.0, 7.0], [5.0, 7.0], tokens_W=[2, 3])
    assert (same.difference, same.p, same.better, same.worse) == (0, 1, 0, 0)
    shifted = paired_perplexity([5.0, 7.0], [6.0, 8.0], tokens_W=[2, 2])
    assert shifted.p == sys.float_info.min
    lost = paired_perplexity([10.0], [1e6], tokens_W=[1])
    assert lost.variant == sys.float_info.max


def test_what_cannot_be_is_refused_in_one_line():
    with pytest.raises(UsageError, match="at least one window"):
        paired_perplexity([], [], tokens_W=[])
    with pytest.raises(UsageError, match="each at least one token"):
        paired_perplexity([1, 2], [1, 2], tokens_W=[1, 0])
    with pytest.raises(MismatchError, match="2 and 1 values"):
        paired_perplexity([1, 2], [1, 2], tokens_W=[1])
    with pytest.raises(MismatchError, match="2 and 1 values"):
        perplexity_beside([1, 2], [1])
    with pytest.raises(UsageError, match="needs the baseline's"):
        perplexity_beside([], [])
    with pytest.raises(UsageError, match="finite"):
        perplexity_beside([math.inf, 2], [1, 2])

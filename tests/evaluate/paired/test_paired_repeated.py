"""Several seeds as repeated measures: exact p, coverage, and one seed as McNemar's."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.errors import MismatchError, UsageError
from moeprune.evaluate.paired.mcnemar import McNemar
from moeprune.evaluate.paired.repeated import mean_interval, repeated


def runs(seed, n, seeds, shift=0.0, seeds_variant=None):
    rng = np.random.default_rng(seed)
    ease_N1 = rng.beta(1, 1, size=(n, 1))
    baseline = rng.random((n, seeds)) < ease_N1
    variant = rng.random((n, seeds_variant or seeds)) < np.clip(ease_N1 + shift, 0, 1)
    return baseline.astype(float), variant.astype(float)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=300))
def test_with_one_seed_it_is_exact_mcnemar(answers):
    baseline, variant = (np.array(column)[:, None] for column in zip(*answers, strict=True))
    found = repeated(baseline, variant)
    test = McNemar.of(baseline[:, 0], variant[:, 0])
    assert found.p == pytest.approx(test.exact_p, rel=1e-12)
    assert found.difference == pytest.approx(test.difference, abs=1e-12)
    assert (found.baseline_spread, found.variant_spread) == (None, None)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 60))
def test_with_one_seed_the_interval_is_bonett_and_prices(b, c, same):
    n = b + c + same
    found = repeated([[1]] * b + [[0]] * (n - b), [[0]] * b + [[1]] * c + [[0]] * same)
    down, up = (b + 1) / (n + 2), (c + 1) / (n + 2)
    half = 1.959964 * np.sqrt((down + up - (up - down) ** 2) / (n + 2))
    assert found.interval.low == pytest.approx(max(-1, up - down - half), abs=1e-6)
    assert found.interval.high == pytest.approx(min(1, up - down + half), abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4))
def test_exchange_and_containment(seed, n, seeds, seeds_variant):
    baseline, variant = runs(seed, n, seeds, 0.2, seeds_variant)
    found, turned = repeated(baseline, variant), repeated(variant, baseline)
    assert found.p == turned.p
    assert found.method == "exact"
    assert 0 < found.p <= 1
    assert found.difference == pytest.approx(-turned.difference, abs=1e-12)
    assert found.difference == pytest.approx(variant.mean() - baseline.mean(), abs=1e-12)
    assert found.difference in found.interval
    assert -1 <= found.interval.low <= found.interval.high <= 1
    assert found.seeds == (seeds, seeds_variant)


def test_exact_p_is_scipys_over_questions():
    baseline, variant = runs(11, 14, 3, 0.2)
    want = scipy.stats.permutation_test(
        (variant.sum(axis=1), baseline.sum(axis=1)),
        lambda x, y, axis: np.sum(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    ).pvalue
    assert repeated(baseline, variant).p == pytest.approx(want, rel=1e-9)


def test_repeating_a_seed_adds_nothing():
    baseline, variant = runs(3, 200, 1, -0.1)
    once, thrice = (
        repeated(baseline, variant),
        repeated(baseline.repeat(3, 1), variant.repeat(3, 1)),
    )
    assert thrice.p == pytest.approx(once.p, rel=1e-12)
    assert thrice.interval.low == pytest.approx(once.interval.low)
    assert (thrice.baseline_spread, thrice.variant_spread) == (0, 0)


def test_spread_is_between_seeds():
    baseline, variant = runs(2, 50, 4)
    found = repeated(baseline, variant)
    assert found.baseline_spread == pytest.approx(np.std(baseline.mean(axis=0), ddof=1))
    assert found.variant_spread == pytest.approx(np.std(variant.mean(axis=0), ddof=1))


def test_level_and_coverage_hold_where_questions_differ_in_ease():
    rejected = covered = 0
    for seed in range(600):
        found = repeated(*runs(seed, 60, 3))
        rejected += found.p < 0.05
        covered += 0.0 in found.interval
    assert rejected / 600 < 0.065
    assert 0.93 < covered / 600 < 0.995


def test_scores_on_a_scale_of_their_own():
    rng = np.random.default_rng(1)
    baseline, variant = rng.normal(30, 5, (40, 2)), rng.normal(33, 5, (40, 2))
    found = repeated(baseline, variant)
    gap = variant.mean(axis=1) - baseline.mean(axis=1)
    t = scipy.stats.ttest_1samp(gap, 0)
    interval = t.confidence_interval(0.95)
    assert found.method == "drawn"
    assert found.p == pytest.approx(t.pvalue, abs=0.005)
    assert (found.interval.low, found.interval.high) == pytest.approx((interval.low, interval.high))
    assert repeated([[30.0]], [[31.0]]).interval is None
    assert mean_interval(np.array([1.0])) is None


def test_few_questions_and_none_that_differ():
    one = repeated([[1]], [[0]])
    assert (one.p, one.difference, one.n) == (1, -1, 1)
    assert -1 in one.interval
    assert one.interval.high > 0
    same = repeated(np.ones((20, 2)), np.ones((20, 3)))
    assert (same.p, same.difference) == (1, 0)
    assert same.interval.low < 0 < same.interval.high


def test_what_cannot_be_paired_is_refused_in_one_line():
    with pytest.raises(MismatchError, match="2 and 1 values"):
        repeated([[1], [0]], [[1]])
    with pytest.raises(UsageError, match="must have 2 axes"):
        repeated([1, 0], [1, 0])
    with pytest.raises(UsageError, match="at least one question and one seed"):
        repeated(np.zeros((0, 2)), np.zeros((0, 2)))
    with pytest.raises(UsageError, match="as many in every row"):
        repeated([[1, 0], [1]], [[1], [0]])
    with pytest.raises(UsageError, match="NaN"):
        repeated([[float("nan")]], [[1]])

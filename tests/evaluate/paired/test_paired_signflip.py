"""The sign-flip test against all signs gone through, scipy's, and the binomial."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.errors import UsageError
from moeprune.evaluate.paired import signflip
from moeprune.evaluate.paired.mcnemar import McNemar
from moeprune.evaluate.paired.signflip import DRAWS, sign_flip

WHOLE = st.lists(st.integers(-6, 6), max_size=10)


def slow_p(differences):
    signs = itertools.product((-1, 1), repeat=len(differences))
    sums = np.array([np.dot(sign, differences) for sign in signs], dtype=float)
    return np.mean(np.abs(sums) >= abs(sum(differences)) - 1e-12 * np.sum(np.abs(differences)))


@settings(deadline=None)
@given(WHOLE)
def test_whole_numbers_against_all_signs(differences):
    found = sign_flip(differences)
    assert found.method == "exact"
    assert found.p == pytest.approx(slow_p(differences), rel=1e-12)


@settings(deadline=None)
@given(st.lists(st.floats(-2, 2), max_size=8))
def test_others_against_all_signs(differences):
    found = sign_flip(differences)
    assert found.method == "exact"
    assert found.p == pytest.approx(slow_p(differences), rel=1e-12)


@given(WHOLE, st.integers(1, 10**6))
def test_scale_and_sign_do_not_matter(differences, factor):
    found = sign_flip(differences)
    assert sign_flip([factor * x for x in differences]) == found
    assert sign_flip([-x for x in differences]) == found
    assert sign_flip([*differences, 0, 0]) == found


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_ones_are_the_binomial_of_mcnemar(b, c):
    found = sign_flip([-1] * b + [1] * c)
    assert found.p == pytest.approx(McNemar(b, c, b + c).exact_p, rel=1e-12)


def test_as_scipys_permutation_test_does():
    rng = np.random.default_rng(4)
    one, other = rng.integers(0, 6, size=(2, 12))
    want = scipy.stats.permutation_test(
        (one, other),
        lambda x, y, axis: np.sum(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    ).pvalue
    assert sign_flip(one - other).p == pytest.approx(want, rel=1e-9)


def test_exact_far_out_and_for_many():
    # Sizes 1 and 2, all one way: only the two outermost assignments of 2^60.
    assert sign_flip([1] * 30 + [2] * 30).p == pytest.approx(2.0**-59, rel=1e-9)
    rng = np.random.default_rng(5)
    differences = rng.integers(-9, 11, size=3000)
    z = differences.sum() / np.sqrt((differences**2).sum())
    found = sign_flip(differences)
    assert found.method == "exact"
    assert found.p == pytest.approx(2 * scipy.stats.norm.sf(abs(z)), rel=0.05)


def test_beyond_it_is_drawn_then_normal(monkeypatch):
    rng = np.random.default_rng(6)
    differences = rng.normal(0.1, 1, size=300)
    z = differences.sum() / np.linalg.norm(differences)
    want = 2 * scipy.stats.norm.sf(abs(z))
    drawn = sign_flip(differences)
    assert drawn.method == "drawn"
    assert drawn.p == pytest.approx(want, abs=0.005)
    assert sign_flip(differences) == drawn
    assert sign_flip(differences, seed=1).p != drawn.p
    assert sign_flip(np.abs(differences)).p == 1 / (DRAWS + 1)
    many = rng.normal(0.005, 1, size=30_000)
    found = sign_flip(many)
    assert found.method == "normal"
    z = many.sum() / np.linalg.norm(many)
    assert found.p == pytest.approx(2 * scipy.stats.norm.sf(abs(z)), rel=1e-9)
    monkeypatch.setattr(signflip, "NORMAL_BEYOND", 10**9)
    assert sign_flip(many).p == pytest.approx(found.p, abs=0.02)


def test_one_that_outweighs_the_others_is_not_taken_as_normal():
    rest = np.random.default_rng(2).normal(size=30_000)
    found = sign_flip([1e6, *rest])
    # Whichever sign the large one has, the others must add as much to it as they do.
    want = scipy.stats.norm.sf(rest.sum() / np.linalg.norm(rest))
    assert found.method == "drawn"
    assert found.p == pytest.approx(want, abs=0.02)


def test_drawn_agrees_with_exact_on_whole_numbers(monkeypatch):
    differences = np.random.default_rng(8).integers(-4, 6, size=60)
    exact = sign_flip(differences)
    monkeypatch.setattr(signflip, "EXACT_WORK", 10)
    drawn = sign_flip(differences)
    assert (exact.method, drawn.method) == ("exact", "drawn")
    assert drawn.p == pytest.approx(exact.p, abs=0.005)


def test_edges():
    for nothing in ([], [0.0], [0, 0, 0]):
        assert sign_flip(nothing) == signflip.SignFlip(1.0, "exact")
    assert sign_flip([3]).p == 1
    assert sign_flip([1e300, -1e300, 1e300]).p == 1
    assert sign_flip([1e308] * 30_000).method == "normal"
    assert sign_flip([1e-300] * 5).p == 2 / 32
    assert sign_flip([2.0**60, 1.0]).p == 0.5 * 2  # the sum is not whole to float64: enumerated
    with pytest.raises(UsageError, match="NaN or infinity"):
        sign_flip([float("inf")])

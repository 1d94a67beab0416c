"""Principal components against eigenvalues; groups of tasks against all splits."""

import itertools

import mesa_tables
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.errors import UsageError
from moeprune.evaluate.paired.clusters import found_clusters, two_means
from moeprune.evaluate.paired.pca import principal_components


def matrix(seed, variants, tasks):
    return np.random.default_rng(seed).normal(60, 15, size=(variants, tasks))


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 12), st.booleans())
def test_as_the_covariance_has_it(seed, variants, tasks, standardise):
    accuracy_VT = matrix(seed, variants, tasks)
    found = principal_components(accuracy_VT, standardise=standardise)
    centred_VT = accuracy_VT - accuracy_VT.mean(axis=0)
    if standardise:
        centred_VT /= accuracy_VT.std(axis=0, ddof=1)
    variance_C = np.linalg.eigvalsh(centred_VT.T @ centred_VT)[::-1][: len(found.share_C)]
    assert len(found.share_C) == min(variants - 1, tasks)
    assert found.share_C == pytest.approx(variance_C / (centred_VT**2).sum(), abs=1e-9)
    assert found.share_C.sum() == pytest.approx(1)
    # Together they give the centred table back, and loadings are orthonormal.
    assert found.score_VC @ found.loading_CT == pytest.approx(centred_VT, abs=1e-8)
    identity = np.eye(len(found.share_C))
    assert found.loading_CT @ found.loading_CT.T == pytest.approx(identity, abs=1e-9)
    for loading_T in found.loading_CT:
        largest = np.abs(loading_T).max()
        first = next(x for x in loading_T if abs(x) > largest * (1 - 1e-8))
        assert first > 0


def test_signs_do_not_depend_on_the_order_of_variants():
    accuracy_VT = matrix(3, 6, 8)
    one = principal_components(accuracy_VT, standardise=True)
    other = principal_components(accuracy_VT[::-1], standardise=True)
    assert one.loading_CT == pytest.approx(other.loading_CT)


def test_where_nothing_varies():
    # Three times 0.1 has a mean that is not 0.1.
    level = principal_components(np.full((3, 3), 0.1), standardise=True)
    assert np.array_equal(level.share_C, np.zeros(2))
    assert found_clusters(level, ("a", "b", "c")) is None
    one = matrix(0, 4, 3)
    one[:, 1] = 70.1
    found = principal_components(one, standardise=True)
    assert np.all(np.isfinite(found.loading_CT))
    assert found.loading_CT[:2, 1] == pytest.approx([0, 0], abs=1e-12)


def test_too_small_a_table_is_refused():
    with pytest.raises(UsageError, match="need two variants and one task"):
        principal_components(np.zeros((1, 3)), standardise=False)
    with pytest.raises(UsageError, match="need two variants and one task"):
        principal_components(np.zeros((3, 0)), standardise=False)
    with pytest.raises(UsageError, match="2 axes"):
        principal_components(np.zeros(3), standardise=False)


def loss(points, inside):
    return sum(((p - p.mean(axis=0)) ** 2).sum() for p in (points[inside], points[~inside]))


def test_tasks_that_fall_together_are_not_split():
    rng = np.random.default_rng(0)
    # Four variants, each some points worse than the one before on every task, and a little noise.
    level = 70 - 2.0 * np.arange(4)[:, None] + rng.normal(0, 0.3, size=(4, 6))
    assert found_clusters(principal_components(level, standardise=True), tuple("abcdef")) is None
    level[:, 4:] = level[::-1, 4:]
    found = found_clusters(principal_components(level, standardise=True), tuple("abcdef"))
    assert found == {"A": list("abcd"), "B": list("ef")}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_two_means_is_nearly_the_best_of_all_splits(seed, size):
    points = np.random.default_rng(seed).normal(size=(size, 2))
    found = two_means(points)
    assert found[0]
    splits = [
        np.array((True, *rest))
        for rest in itertools.product((True, False), repeat=size - 1)
        if not all(rest)
    ]
    best = min(loss(points, split) for split in splits)
    # Every pair of points is a start; only rarely is the best split out of reach of all of them.
    assert best - 1e-9 <= loss(points, found) <= 1.1 * best + 1e-9


def test_two_means_finds_two_heaps_whatever_the_order():
    rng = np.random.default_rng(0)
    heaps = np.concatenate([rng.normal(0, 0.1, (5, 2)), rng.normal(3, 0.1, (4, 2))])
    truth = np.arange(9) < 5
    for _ in range(5):
        order = rng.permutation(9)
        found = two_means(heaps[order])
        assert np.array_equal(found == found[0], truth[order] == truth[order][0])


def test_two_means_of_points_that_are_all_one():
    assert two_means(np.ones((4, 2))) is None
    assert two_means(np.full((3, 2), 0.1) + 1e-17) is None
    assert two_means(np.zeros((1, 2))) is None
    assert np.array_equal(two_means(np.array([[0.0, 0], [1, 0]])), [True, False])


@pytest.mark.parametrize("variants", [tuple(mesa_tables.ACCURACY), tuple(mesa_tables.ACCURACY)[:4]])
def test_the_papers_table_2_has_the_groups_of_its_appendix_c(variants):
    table = mesa_tables.table(variants)
    components = principal_components(table.accuracy_VT, standardise=True)
    found = found_clusters(components, table.tasks)
    assert sorted(found["A"]) == sorted(["GSM8K", "AIME25", "GPQA", "IFEval", "WinoGrande", "OBQA"])
    assert sorted(found["B"]) == sorted(["MMLU", "MMLU-Pro", "ARC-C", "ARC-E", "PIQA"])

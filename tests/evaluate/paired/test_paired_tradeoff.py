"""Rank inversion against a loop over partitions with scipy's ρ, and the trade-off as a whole."""

import itertools

import mesa_tables
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.errors import UsageError
from moeprune.evaluate.paired import inversion as module
from moeprune.evaluate.paired.deltas import AccuracyTable
from moeprune.evaluate.paired.inversion import inversion
from moeprune.evaluate.paired.tradeoff import tradeoff


def slow_rho(accuracy_VT, one, other):
    means = [np.round(accuracy_VT[:, list(columns)].mean(axis=1), 9) for columns in (one, other)]
    if any(len(set(mean)) == 1 for mean in means):
        return 0.0
    return scipy.stats.spearmanr(*means)[0]


def slow_p(accuracy_VT, one, other):
    tasks = range(accuracy_VT.shape[1])
    seen = slow_rho(accuracy_VT, one, other)
    found = [
        slow_rho(accuracy_VT, first, second)
        for first in itertools.combinations(tasks, len(one))
        for second in itertools.combinations(sorted(set(tasks) - set(first)), len(other))
    ]
    return np.mean(np.array(found) <= seen + 1e-9), len(found)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 5), st.sampled_from([(1, 1), (2, 2), (1, 3), (2, 3)]))
def test_p_is_the_share_of_all_partitions(seed, variants, sizes):
    # Few levels, so that means tie.
    accuracy_VT = np.random.default_rng(seed).integers(0, 4, size=(variants, 5)).astype(float)
    one, other = list(range(sizes[0])), list(range(sizes[0], sum(sizes)))
    found = inversion(accuracy_VT, one, other)
    if found.rho is None:
        assert (found.p, found.method) == (1, "none")
        return
    p, count = slow_p(accuracy_VT, one, other)
    assert found.rho == pytest.approx(slow_rho(accuracy_VT, one, other), abs=1e-12)
    assert found.p == pytest.approx(p, abs=1e-12)
    assert found.partitions == count // (2 if sizes[0] == sizes[1] else 1)
    assert found.method == "exact"


@given(st.integers(0, 10**6))
def test_symmetries(seed):
    accuracy_VT = np.random.default_rng(seed).normal(60, 9, size=(4, 6))
    found = inversion(accuracy_VT, [0, 1], [2, 3, 4])
    assert inversion(accuracy_VT, [2, 3, 4], [1, 0]) == found
    shifted = accuracy_VT - np.arange(6) * 7.0  # as subtracting a baseline does
    assert inversion(shifted, [0, 1], [2, 3, 4]).p == found.p


def test_a_planted_inversion_is_found_and_chance_is_not():
    rng = np.random.default_rng(0)
    level_V = np.arange(6.0)
    planted_VT = np.concatenate(
        [
            level_V[:, None] + rng.normal(0, 0.1, (6, 4)),
            -level_V[:, None] + rng.normal(0, 0.1, (6, 4)),
            rng.normal(0, 5, (6, 7)),
        ],
        axis=1,
    )
    found = inversion(planted_VT, [0, 1], [4, 5, 6])
    assert found.rho == -1
    assert found.p < 0.05
    assert found.pearson < -0.99
    p_values = [inversion(rng.normal(size=(6, 7)), [0, 1], [2, 3, 4]).p for _ in range(200)]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.09


def test_too_many_partitions_are_drawn(monkeypatch):
    accuracy_VT = np.random.default_rng(2).normal(60, 9, size=(5, 9))
    exact = inversion(accuracy_VT, [0, 1, 2], [3, 4, 5, 6])
    monkeypatch.setattr(module, "ALL_UP_TO", 1200)
    drawn = inversion(accuracy_VT, [0, 1, 2], [3, 4, 5, 6])
    assert (exact.method, drawn.method) == ("exact", "drawn")
    assert drawn.p == pytest.approx(exact.p, abs=0.05)
    assert drawn.partitions == 1201
    assert inversion(accuracy_VT, [0, 1, 2], [3, 4, 5, 6]) == drawn
    seeds = {inversion(accuracy_VT, [0, 1, 2], [3, 4, 5, 6], seed=seed).p for seed in range(5)}
    assert len(seeds) > 1


def test_a_drawn_p_is_never_0(monkeypatch):
    rng = np.random.default_rng(1)
    level_VT = np.arange(7.0)[:, None] * [1, 1, -1, -1] + rng.normal(0, 0.1, (7, 4))
    planted_VT = np.concatenate([level_VT, rng.normal(0, 20, (7, 12))], axis=1)
    monkeypatch.setattr(module, "ALL_UP_TO", 30)
    found = inversion(planted_VT, [0, 1], [2, 3])
    assert (found.rho, found.p) == (-1, 1 / 31)


def test_groups_without_an_order_count_as_no_inversion():
    accuracy_VT = np.array([[1.0, 1, 5], [2, 2, 5], [3, 3, 5]])
    found = inversion(accuracy_VT, [0], [1])
    # ρ = 1 of the first two tasks, none of the others, which all count as at most 1.
    assert (found.rho, found.p, found.partitions) == (1, 1, 3)
    against = inversion(accuracy_VT * [1, -1, 1], [0], [1])
    assert (against.rho, against.p) == (-1, 1 / 3)


def test_the_papers_methods_invert_without_random():
    four = mesa_tables.table(tuple(mesa_tables.ACCURACY)[:4])
    found = tradeoff(four, clusters=mesa_tables.APPENDIX_B)
    assert found.inversion.rho == pytest.approx(-0.8)
    assert found.inversion.pearson == pytest.approx(-0.88, abs=0.005)
    assert found.inversion.partitions == 4620
    assert found.inversion.p == pytest.approx(0.109, abs=5e-4)
    # Appendix C: the baseline dominates both groups, and the inversion goes.
    assert found.inversion_with_baseline.rho == pytest.approx(0.1)
    assert found.inversion_with_baseline.variants == 5
    # Appendix C, the order of the methods in each group.
    order = {
        name: [four.variants[row] for row in np.argsort(-delta_V)]
        for name, delta_V in found.deltas.items()
    }
    assert order["reasoning"] == ["REAP", "MESA", "EvoESAP", "RM-Uniform"]
    assert order["knowledge"] == ["EvoESAP", "RM-Uniform", "MESA", "REAP"]
    assert not found.found


def test_with_random_they_do_not():
    found = tradeoff(mesa_tables.table(), clusters=mesa_tables.TABLE_9)
    assert found.inversion.rho == pytest.approx(0.1)
    assert found.characters == (
        "balanced",
        "reasoning-preserving",
        "knowledge-preserving",
        "knowledge-preserving",
        "losing both",
    )


def test_groups_found_in_the_table_are_marked():
    found = tradeoff(mesa_tables.table())
    assert found.found
    assert list(found.clusters) == ["A", "B"]
    assert found.clusters["A"][0] == "AIME25"
    assert len(found.clusters["A"]) + len(found.clusters["B"]) == 11
    assert found.inversion.rho == pytest.approx(-0.3)


def test_where_nothing_differs_there_are_no_groups():
    level = AccuracyTable(
        variants=("a", "b", "c"),
        tasks=("x", "y"),
        baseline_T=np.array([50.0, 60]),
        accuracy_VT=np.full((3, 2), 50.0),
    )
    found = tradeoff(level)
    assert (found.clusters, found.inversion, found.characters, found.deltas) == (None, None, (), {})
    named = tradeoff(level, clusters={"A": ["x"], "B": ["y"]})
    assert named.inversion.rho is None
    assert named.inversion.p == 1
    assert named.characters == ("A-preserving",) * 3  # nothing lost on x, ten points on y


def test_what_does_not_fit_is_refused_in_one_line():
    with pytest.raises(UsageError, match="needs 3 variants beside the baseline"):
        tradeoff(mesa_tables.table(("MESA", "REAP")))
    with pytest.raises(UsageError, match="between two groups"):
        tradeoff(mesa_tables.table(), clusters={"A": ["MMLU"], "B": ["PIQA"], "C": ["GPQA"]})
    with pytest.raises(UsageError, match="no task"):
        tradeoff(mesa_tables.table(), clusters={"A": ["MMLU"], "B": ["nothing"]})

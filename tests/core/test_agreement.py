"""Agreement beyond chance against drawn plans and exact counting."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.agreement import agreement, overlap_by_chance, shared_by_chance_L


def plan(removed, experts):
    mask_LE = np.zeros((len(experts), max(experts)), dtype=bool)
    for row, ids in enumerate(removed):
        mask_LE[row, list(ids)] = True
    return mask_LE


def test_chance_is_the_mean_over_all_plans():
    experts = [6, 4]
    one_LE = plan([(0, 3), (1,)], experts)
    shared = [
        [len({0, 3} & set(a)), len({1} & set(b))]
        for a in itertools.combinations(range(6), 3)
        for b in itertools.combinations(range(4), 2)
    ]
    other_LE = plan([(0, 1, 2), (0, 1)], experts)
    assert shared_by_chance_L(one_LE, other_LE, experts) == pytest.approx(np.mean(shared, axis=0))
    mean = np.mean(shared, axis=0).sum()
    assert overlap_by_chance(one_LE, other_LE, experts) == pytest.approx(mean / (3 + 5 - mean))


@given(seed=st.integers(0, 10**6), layers=st.integers(1, 4), width=st.integers(2, 12))
def test_bounds_and_symmetry(seed, layers, width):
    rng = np.random.default_rng(seed)
    experts = rng.integers(1, width + 1, size=layers)
    experts[0] = width
    real_LE = np.arange(width) < experts[:, None]
    one_LE, other_LE = (real_LE & (rng.random((layers, width)) < 0.4) for _ in range(2))
    found = agreement(one_LE, other_LE, experts)
    assert found == agreement(other_LE, one_LE, experts)
    assert found <= 1 + 1e-12
    assert agreement(one_LE, one_LE, experts) == pytest.approx(1)
    assert 0 <= overlap_by_chance(one_LE, other_LE, experts) <= 1


def test_random_plans_agree_by_chance_only():
    rng = np.random.default_rng(0)
    drawn = [plan([rng.permutation(32)[:8] for _ in range(24)], [32] * 24) for _ in range(40)]
    pairs = list(itertools.pairwise(drawn))
    assert abs(np.mean([agreement(one, other, [32] * 24) for one, other in pairs])) < 0.02
    disjoint = plan([(0, 1)], [4]), plan([(2, 3)], [4])
    assert agreement(*disjoint, [4]) == -1

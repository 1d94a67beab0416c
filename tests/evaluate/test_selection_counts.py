"""Shares of same experts, by hand and in plain Python; intervals of clustered shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_selection import student

from moeprune.evaluate.paired.shares import clustered_share
from moeprune.evaluate.selection import SelectionCounts

ROWS = [{"layer": 0}, {"layer": 3, "set": "attention"}]


def test_by_hand() -> None:
    counts = SelectionCounts.empty(2, [2, 2])
    counts.add(0, 0, np.array([[1, 2, 9], [3, 4, 9]]), np.array([[1, 2], [4, 3]]))
    counts.add(0, 1, np.array([[5, 6], [7, 8]]), np.array([[5, 1], [1, 2]]))
    counts.add(1, 0, np.array([[0, 1]]), np.array([[0, 1]]))
    counts.add(1, 1, np.array([[-1, 1]]), np.array([[-2, 1]]))
    found = counts.to_json(domains_C=["a", "b"], rows=ROWS)
    assert found["ranks"] == [3 / 6, 3 / 6] and found["same_set"] == 3 / 6
    assert found["overlap"] == (2 + 2 + 1 + 0 + 2 + 1) / 12
    assert (found["tokens"], found["documents"]) == (3, 2)
    first, second = found["layers"]
    assert first == {"layer": 0, "ranks": [2 / 3, 2 / 3], "same_set": 1.0, "overlap": 1.0}
    assert second == {**ROWS[1], "ranks": [1 / 3, 1 / 3], "same_set": 0.0, "overlap": 2 / 6}
    assert found["domains"]["b"]["ranks"] == [0.5, 1.0]
    assert found["domains"]["b"]["intervals"]["same_set"] is None


def test_layers_of_different_depth() -> None:
    """A rank is counted where it exists."""
    counts = SelectionCounts.empty(1, [1, 2])
    counts.add(0, 0, np.array([[1], [2]]), np.array([[1], [1]]))
    counts.add(0, 1, np.array([[1, 2], [1, 2]]), np.array([[1, 2], [1, 3]]))
    found = counts.to_json(domains_C=["a"], rows=ROWS)
    assert found["ranks"] == [3 / 4, 1 / 2]
    assert found["overlap"] == (1 + 0 + 2 + 1) / 6
    assert [len(layer["ranks"]) for layer in found["layers"]] == [1, 2]


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 40)).filter(lambda one: one[1] <= one[0]),
        min_size=2,
        max_size=9,
    )
)
def test_clustered_share(parts: list[tuple[int, int]]) -> None:
    """Doubling every document's tokens changes nothing, doubling the documents narrows it."""
    cases, right = (np.array(values) for values in zip(*parts, strict=True))
    found = clustered_share(right, cases)
    if found is None:
        shares = right / cases
        assert np.ptp(shares) < 1e-9
        return
    share = right.sum() / cases.sum()
    assert 0 <= found.low <= share <= found.high <= 1
    twice = clustered_share(2 * right, 2 * cases)
    assert twice is not None
    assert (twice.low, twice.high) == pytest.approx((found.low, found.high))
    more = clustered_share(np.tile(right, 2), np.tile(cases, 2))
    assert more is not None and more.high - more.low <= found.high - found.low + 1e-12


def test_documents_of_one_length_give_students_interval() -> None:
    right, cases = np.array([3, 7, 4, 6, 5]), np.array([10] * 5)
    found = clustered_share(right, cases)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(student([0.3, 0.7, 0.4, 0.6, 0.5]))


def test_it_holds_its_level() -> None:
    """Documents with shares of their own: tokens alone would claim too much."""
    rng = np.random.default_rng(0)
    inside = naive = 0
    for _ in range(600):
        cases = rng.integers(50, 400, 12)
        right = rng.binomial(cases, rng.beta(9, 3, 12))
        found = clustered_share(right, cases)
        assert found is not None
        inside += 0.75 in found
        share, total = right.sum() / cases.sum(), cases.sum()
        naive += abs(share - 0.75) < 1.96 * (share * (1 - share) / total) ** 0.5
    assert 0.92 < inside / 600 < 0.98
    assert naive / 600 < 0.6


def test_too_few() -> None:
    assert clustered_share(np.array([3]), np.array([4])) is None
    assert clustered_share(np.array([3, 0]), np.array([4, 0])) is None
    assert clustered_share(np.array([4, 9]), np.array([4, 9])) is None

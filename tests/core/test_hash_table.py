"""Routing tables: every entry names a kept expert, none twice for a token, kept ones untouched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.hash_table import renumbered, replaced, without_one


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, list[int], int]:
    experts = draw(st.integers(2, 12))
    top_k = draw(st.integers(1, min(4, experts)))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    rows = draw(st.integers(0, 40))
    table_VK = np.array([rng.permutation(experts)[:top_k] for _ in range(rows)], np.int64)
    stay = draw(st.integers(top_k, experts))
    keep = sorted(rng.permutation(experts)[:stay].tolist())
    return table_VK.reshape(rows, top_k), keep, experts


@given(tables())
def test_replacements(case: tuple[np.ndarray, list[int], int]) -> None:
    table_VK, keep, _ = case
    before = table_VK.copy()
    new_VK = replaced(table_VK, keep)
    assert (table_VK == before).all()
    assert new_VK.dtype == np.int64 and new_VK.shape == table_VK.shape
    for old_K, new_K in zip(table_VK.tolist(), new_VK.tolist(), strict=True):
        assert set(new_K) <= set(keep)
        assert len(set(new_K)) == len(new_K)
        assert all(new == old for old, new in zip(old_K, new_K, strict=True) if old in keep)
    numbers_VK = renumbered(table_VK, keep)
    assert (np.asarray(keep)[numbers_VK] == new_VK).all()


@given(tables(), st.integers(0, 99))
def test_each_entry_without_one_expert_of_its_own(
    case: tuple[np.ndarray, list[int], int], seed: int
) -> None:
    table_VK, _, experts = case
    row_N = np.random.default_rng(seed).integers(0, max(len(table_VK), 1), 30 * bool(len(table_VK)))
    gone_N = np.random.default_rng(seed + 1).integers(-1, experts, len(row_N))
    ids_NK = table_VK[row_N]
    found_NK = without_one(ids_NK, row_N, gone_N, num_experts=experts)
    for row, gone, ids_K, found_K in zip(row_N, gone_N, ids_NK, found_NK, strict=True):
        keep = [expert for expert in range(experts) if expert != gone]
        few = len(keep) < table_VK.shape[1]  # a plan leaves none so few
        assert (found_K == (ids_K if few else replaced(table_VK, keep)[row])).all()


def test_the_work_of_a_removed_expert_is_spread() -> None:
    rng = np.random.default_rng(0)
    table_VK = np.array([rng.permutation(9)[:3] for _ in range(3000)])
    new_VK = replaced(table_VK, range(1, 9))
    gained_E = np.bincount(new_VK[table_VK == 0], minlength=9)
    assert gained_E[0] == 0 and gained_E.sum() == (table_VK == 0).sum()
    assert gained_E[1:].min() > 0.7 * gained_E.sum() / 8


@pytest.mark.parametrize("rows", [0, 1])
def test_small_tables(rows: int) -> None:
    table_VK = np.array([[3, 0]] * rows, np.int64).reshape(rows, 2)
    assert replaced(table_VK, [0, 1]).tolist() == [[1, 0]] * rows
    assert renumbered(table_VK, [0, 1]).tolist() == [[1, 0]] * rows


def test_a_token_that_names_an_expert_twice_stays_so() -> None:
    assert replaced(np.array([[2, 2, 5]]), [1, 2, 3]).tolist() in ([[2, 2, 1]], [[2, 2, 3]])

"""What a loss says of each expert: the sums against one line a token, and what cannot be added."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.stats import ALL_FIELDS, FIELDS, FOLDS, LOSS_FIELDS
from moeprune.errors import CheckpointError, StatsError, UnsupportedModelError
from moeprune.observe.sums import FoldedSums


def some_sums(experts: tuple[int, ...], *, loss: bool = True, runs: int = 1) -> FoldedSums:
    return FoldedSums(
        layer_ids=tuple(range(3, 3 + len(experts))),
        num_experts=experts,
        gating="softmax",
        passes=(runs,) * len(experts),
        loss=loss,
    )


def routed(sums: FoldedSums, row: int, tokens: int, experts: int) -> None:
    """The report of the pass without a gradient, which every layer makes."""
    ones = torch.ones(tokens, 1)
    ids = torch.zeros(tokens, 1, dtype=torch.int64)
    logits = torch.zeros(tokens, experts)
    sums.add(row, logits_TE=logits, ids_TK=ids, gates_TK=ones, norms_TK=ones)


@given(
    seed=st.integers(0, 1000),
    experts=st.integers(2, 6),
    docs=st.integers(1, 7),
    width=st.integers(1, 5),
    runs=st.integers(1, 2),
)
def test_sums_over_tokens_and_over_documents(
    seed: int, experts: int, docs: int, width: int, runs: int
) -> None:
    rng = np.random.default_rng(seed)
    counts = (experts, experts + 2)
    sums = some_sums(counts, runs=runs)
    want = {
        name: np.zeros((FOLDS, *({"L": 2, "E": experts + 2}[axis] for axis in axes)))
        for name, (axes, _, _) in LOSS_FIELDS.items()
    }
    for _ in range(2):
        fold_BS = np.where(rng.random((docs, width)) < 0.7, rng.integers(0, 4, (docs, 1)), -1)
        counted_BS = rng.random((docs, width)) < 0.5  # of no account here
        sums.begin(fold_BS.astype(np.int64), counted_BS)
        tokens = [(b, s) for b in range(docs) for s in range(width) if fold_BS[b, s] >= 0]
        for row, count in enumerate(counts):
            routed(sums, row, len(tokens), count)
        loss_N = rng.random(len(tokens))
        for half in (slice(0, 2), slice(2, None)):
            document_N = np.array([b for b, _ in tokens[half]], np.int64)
            sums.add_loss(torch.from_numpy(loss_N[half]), torch.from_numpy(document_N))
        for (b, s), loss in zip(tokens, loss_N, strict=True):
            want["loss_sum"][fold_BS[b, s]] += loss
            want["loss_tokens"][fold_BS[b, s]] += 1
        for row, count in reversed(list(enumerate(counts))):
            whole: dict[tuple[int, int], list[float]] = {}
            for _ in range(runs):
                ids = np.stack([rng.permutation(count)[:2] for _ in tokens] or [np.zeros((0, 2))])
                ids = ids.reshape(len(tokens), 2).astype(np.int64)
                ids[rng.random(ids.shape) < 0.1] = -1
                drop, cf = rng.normal(size=(2, len(tokens), 2))
                sums.add_changes(
                    row,
                    ids_TK=torch.from_numpy(ids),
                    drop_TK=torch.from_numpy(drop),
                    cf_TK=torch.from_numpy(cf),
                )
                for t, (b, s) in enumerate(tokens):
                    for k in range(2):
                        if ids[t, k] < 0:
                            continue
                        at = (fold_BS[b, s], row, ids[t, k])
                        want["fisher_sum"][at] += drop[t, k] ** 2
                        want["fisher_cf_sum"][at] += cf[t, k] ** 2
                        want["abs_cf_sum"][at] += abs(cf[t, k])
                        own = whole.setdefault((b, ids[t, k]), [0.0, 0.0])
                        own[0] += drop[t, k]
                        own[1] += cf[t, k]
            for (b, e), (drop_sum, cf_sum) in whole.items():
                at = (fold_BS[b].max(), row, e)
                want["drop_change_sum"][at] += drop_sum
                want["drop_change_sq_sum"][at] += drop_sum**2
                want["cf_change_sum"][at] += cf_sum
                want["cf_change_sq_sum"][at] += cf_sum**2
                want["cf_change_abs_sum"][at] += abs(cf_sum)
        sums.end()
    found = sums.arrays()
    assert set(found) == set(ALL_FIELDS)
    for name, array in want.items():
        assert found[name].dtype == LOSS_FIELDS[name][1]
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-12, err_msg=name)


def test_without_a_loss_there_are_the_plain_fields_alone() -> None:
    assert set(some_sums((2,), loss=False).arrays()) == set(FIELDS)


def test_sums_go_on_from_stored_ones() -> None:
    first, again = some_sums((2,)), some_sums((2,))
    for sums in (first, again):
        for _ in range(2):
            if sums is again:
                again.restore({name: array.copy() for name, array in first.arrays().items()})
            batch(sums)
    for name, array in first.arrays().items():
        if name != "norm_max":
            assert (again.arrays()[name] == array * 1.5).all(), name
    # What it went on from is not changed.
    assert first.arrays()["loss_tokens"].sum() == 4


def batch(sums: FoldedSums) -> None:
    sums.begin(np.zeros((1, 2), np.int64))
    routed(sums, 0, 2, 2)
    ones = torch.ones(2, 1)
    ids = torch.tensor([[0], [1]])
    sums.add_loss(torch.ones(2), torch.zeros(2, dtype=torch.int64))
    sums.add_changes(0, ids_TK=ids, drop_TK=ones, cf_TK=-ones)
    sums.end()


def report(sums: FoldedSums, **changed: Any) -> None:
    ones = torch.ones(3, 2)
    ids = torch.tensor([[0, 1]]).repeat(3, 1)
    sums.add_changes(0, **{"ids_TK": ids, "drop_TK": ones, "cf_TK": ones, **changed})


def test_a_gradient_that_is_not_finite_is_named() -> None:
    sums = some_sums((2,))
    fold_BS, number_B = np.zeros((2, 2), np.int64), np.array([7, 11])
    fold_BS[0, 1] = -1
    sums.begin(fold_BS, None, number_B)
    bad = torch.ones(3, 2)
    bad[1, 1] = torch.inf
    with pytest.raises(CheckpointError, match="layer 3, document 11: the gradient of the loss"):
        report(sums, cf_TK=bad)
    with pytest.raises(CheckpointError, match="document 7: the loss is not finite"):
        sums.add_loss(torch.tensor([torch.nan]), torch.tensor([0]))


def test_a_layer_of_which_the_loss_says_nothing_is_named() -> None:
    sums = some_sums((2, 2))
    sums.begin(np.zeros((1, 3), np.int64))
    for row in range(2):
        routed(sums, row, 3, 2)
    report(sums)
    sums.add_loss(torch.ones(1), torch.tensor([0]))
    with pytest.raises(StatsError, match="layer 4: the loss says nothing of its experts"):
        sums.end()


def test_a_batch_without_a_target_says_nothing() -> None:
    sums = some_sums((2,))
    sums.begin(np.zeros((1, 3), np.int64))
    routed(sums, 0, 3, 2)
    sums.end()
    assert all(not sums.arrays()[name].any() for name in LOSS_FIELDS)


def test_changes_of_another_number_of_tokens_are_refused() -> None:
    sums = some_sums((2,))
    sums.begin(np.zeros((1, 2), np.int64))
    with pytest.raises(UnsupportedModelError, match="layer 3: changes of"):
        report(sums)

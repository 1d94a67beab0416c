"""The sums against one numpy line a field, for any routing; probabilities for any logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.stats import FIELDS, FOLDS
from moeprune.errors import CheckpointError, StatsError, UnsupportedModelError
from moeprune.observe.scores import router_probabilities
from moeprune.observe.sums import FoldedSums


@given(
    seed=st.integers(0, 1000),
    experts=st.integers(1, 9),
    top_k=st.integers(1, 9),
    docs=st.integers(1, 6),
    width=st.integers(1, 7),
    ragged=st.booleans(),
)
def test_sums_of_any_routing(
    seed: int, experts: int, top_k: int, docs: int, width: int, ragged: bool
) -> None:
    top_k = min(top_k, experts)
    rng = np.random.default_rng(seed)
    counts = (experts, experts + 2) if ragged else (experts, experts)
    sums = FoldedSums(layer_ids=(3, 7), num_experts=counts, gating="softmax")
    want = {
        name: np.zeros((FOLDS, 2, max(counts)) if axes == "LE" else (FOLDS, 2))
        for name, (axes, _, _) in FIELDS.items()
    }
    for _ in range(2):
        fold_BS = np.where(rng.random((docs, width)) < 0.7, rng.integers(0, 4, (docs, 1)), -1)
        sums.begin(fold_BS.astype(np.int64))
        live = fold_BS.reshape(-1) >= 0
        fold_T = fold_BS.reshape(-1)[live]
        tokens = int(live.sum())
        for row, count in enumerate(counts):
            logits = rng.normal(0, 3, (docs * width, count))
            gates = rng.random((tokens, top_k))
            norms = rng.random((tokens, top_k)) * 10
            ids = np.stack([rng.permutation(count)[:top_k] for _ in range(tokens)] or [[]])
            ids = ids.reshape(tokens, top_k).astype(np.int64)
            sums.add(
                row,
                logits_TE=sums.live(torch.from_numpy(logits), row=row),
                ids_TK=torch.from_numpy(ids),
                gates_TK=torch.from_numpy(gates),
                norms_TK=torch.from_numpy(norms),
            )
            exps = np.exp(logits[live])
            probs = exps / exps.sum(axis=1, keepdims=True)
            entropy = -(probs * np.log2(probs)).sum(axis=1)
            for token, fold in enumerate(fold_T):
                want["tokens"][fold, row] += 1
                want["entropy_sum"][fold, row] += entropy[token]
                want["entropy_sq_sum"][fold, row] += entropy[token] ** 2
                want["prob_sum"][fold, row, :count] += probs[token]
                want["rank_prob_sum"][fold, row, :count] += np.sort(probs[token])[::-1]
                for e, g, n in zip(ids[token], gates[token], norms[token], strict=True):
                    for name, value in {
                        "count": 1,
                        "gate_sum": g,
                        "norm_sum": n,
                        "norm_sq_sum": n**2,
                        "gate_norm_sum": g * n,
                        "gate_norm_sq_sum": (g * n) ** 2,
                        "prob_norm_sum": probs[token, e] * n,
                    }.items():
                        want[name][fold, row, e] += value
                    largest = want["norm_max"][fold, row]
                    largest[e] = max(largest[e], n)
        sums.end()
    for name, array in sums.arrays().items():
        assert array.dtype == FIELDS[name][1]
        rtol = 1e-6 if name == "norm_max" else 1e-12
        np.testing.assert_allclose(array, want[name], rtol=rtol, atol=1e-12, err_msg=name)


def test_ten_million_small_additions_lose_nothing() -> None:
    sums = FoldedSums(layer_ids=(0,), num_experts=(1,), gating="softmax")
    tokens, value = 1 << 14, 1.2345678e-3
    fold = np.zeros((1, tokens), np.int64)
    for _ in range(64):
        sums.begin(fold)
        ones = torch.ones(tokens, 1)
        sums.add(
            0,
            logits_TE=ones,
            ids_TK=torch.zeros(tokens, 1, dtype=torch.int64),
            gates_TK=ones,
            norms_TK=ones * value,
        )
    found = sums.arrays()["norm_sum"][0, 0, 0]
    assert abs(found / (64 * tokens * float(np.float32(value))) - 1) < 1e-12


@given(
    logits=st.lists(st.floats(-80, 80), min_size=1, max_size=8),
    gating=st.sampled_from(["softmax", "sigmoid", "sqrtsoftplus"]),
)
def test_probabilities_are_scores_over_their_sum(logits: list[float], gating: str) -> None:
    score = {
        "softmax": lambda x: np.exp(x - max(logits)),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "sqrtsoftplus": lambda x: np.sqrt(np.log1p(np.exp(x))),
    }[gating]
    values = np.asarray([score(np.float64(x)) for x in logits])
    found = router_probabilities(torch.tensor([logits], dtype=torch.float64), gating=gating)
    np.testing.assert_allclose(found[0].numpy(), values / values.sum(), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_extreme_logits_give_distributions(gating: str) -> None:
    logits = torch.tensor([[-1e4, -1e4, -1e4], [1e4, 0, -1e4], [-500.0, -400, -300]])
    for kind in (torch.float32, torch.bfloat16):
        found = router_probabilities(logits.to(kind), gating=gating)
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found.sum(dim=1), torch.ones(3))


def test_experts_masked_to_minus_infinity_have_no_share() -> None:
    sums = FoldedSums(layer_ids=(0,), num_experts=(3,), gating="softmax")
    sums.begin(np.zeros((1, 1), np.int64))
    sums.add(
        0,
        logits_TE=torch.tensor([[0.0, 0.0, -torch.inf]]),
        ids_TK=torch.tensor([[0]]),
        gates_TK=torch.tensor([[1.0]]),
        norms_TK=torch.tensor([[2.0]]),
    )
    assert sums.arrays()["entropy_sum"][0, 0] == pytest.approx(1.0)
    assert sums.arrays()["prob_sum"][0, 0].tolist() == [0.5, 0.5, 0.0]


def test_a_layer_that_reports_nothing_is_named() -> None:
    sums = FoldedSums(layer_ids=(3, 7), num_experts=(2, 2), gating="softmax")
    sums.begin(np.zeros((1, 1), np.int64))
    one = torch.ones(1, 1)
    sums.add(0, logits_TE=torch.zeros(1, 2), ids_TK=one.long(), gates_TK=one, norms_TK=one)
    with pytest.raises(StatsError, match="layer 7: its experts or its router never reported"):
        sums.end()


def test_shapes_that_do_not_fit_name_the_layer() -> None:
    sums = FoldedSums(layer_ids=(3,), num_experts=(2,), gating="softmax")
    sums.begin(np.zeros((1, 2), np.int64))
    with pytest.raises(UnsupportedModelError, match="layer 3 saw 5 tokens of a batch of 2"):
        sums.live(torch.zeros(5, 2), row=0)
    one = torch.ones(2, 1)
    with pytest.raises(UnsupportedModelError, match=r"layer 3: the router gives \[2, 4\]"):
        sums.add(0, logits_TE=torch.zeros(2, 4), ids_TK=one.long(), gates_TK=one, norms_TK=one)


def test_tokens_that_are_not_counted_change_nothing() -> None:
    """The same as a batch of the counted tokens alone, whatever stands beside them."""
    random = np.random.default_rng(4)
    fold = np.array([[0, 0, 0, 0, -1], [1, 1, 1, -1, -1], [2, 2, 2, 2, 2]])
    counted = random.random(fold.shape) < 0.5
    counted[0] = False
    live = fold.reshape(-1) >= 0
    chosen = (counted.reshape(-1) & live)[live]
    values = {
        "logits_TE": torch.from_numpy(random.normal(size=(12, 6))),
        "ids_TK": torch.from_numpy(np.argsort(random.random((12, 6)), axis=1)[:, :2].copy()),
        "gates_TK": torch.from_numpy(random.random((12, 2))),
        "norms_TK": torch.from_numpy(random.random((12, 2))),
        "gate_norms_TK": torch.from_numpy(random.random((12, 2))),
    }
    found, want = (FoldedSums(layer_ids=(0,), num_experts=(6,), gating="softmax") for _ in range(2))
    found.begin(fold, counted)
    found.add(0, **values)
    found.end()
    want.begin(np.where(counted, fold, -1)[counted & (fold >= 0)][None])
    want.add(0, **{name: value[torch.from_numpy(chosen)] for name, value in values.items()})
    want.end()
    for name, array in want.arrays().items():
        assert (found.arrays()[name] == array).all(), name
    assert (
        found.arrays()["tokens"][:, 0].tolist()
        == np.bincount(fold[counted & (fold >= 0)], minlength=4).tolist()
    )


@pytest.mark.parametrize("name", ["logits_TE", "gates_TK", "norms_TK", "gate_norms_TK"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_any_number_that_is_not_finite_is_named(name: str, bad: float) -> None:
    sums = FoldedSums(layer_ids=(5,), num_experts=(4,), gating="softmax")
    sums.begin(np.zeros((2, 3), np.int64), number_B=np.array([8, 9]))
    values = {
        "logits_TE": torch.zeros(6, 4),
        "ids_TK": torch.tensor([[0, 1]] * 6),
        "gates_TK": torch.ones(6, 2),
        "norms_TK": torch.ones(6, 2),
        "gate_norms_TK": torch.ones(6, 2),
    }
    values[name][4, 1] = bad
    with pytest.raises(CheckpointError, match=r"layer 5, document 9: .* not finite"):
        sums.add(0, **values)
    assert not any(array.any() for array in sums.arrays().values())

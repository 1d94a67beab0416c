"""Nuclei and acceptance against loops over plain numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeprune.evaluate.nucleus import accepted, nuclei


def softmax(logits: list[float]) -> list[float]:
    largest = max(logits)
    weights = [math.exp(value - largest) for value in logits]
    return [weight / math.fsum(weights) for weight in weights]


def smallest_set(probs: list[float], top_p: float) -> list[int]:
    chosen: list[int] = []
    for token in sorted(range(len(probs)), key=lambda token: (-probs[token], token)):
        if math.fsum(probs[each] for each in chosen) >= top_p:
            break
        chosen.append(token)
    return chosen


rows = st.integers(2, 12).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=width, max_size=width),
        min_size=2,
        max_size=6,
    )
)


@given(rows=rows, top_p=st.sampled_from([0.05, 0.5, 0.9, 0.97]))
def test_a_nucleus_is_the_smallest_set_of_likeliest_tokens(
    rows: list[list[float]], top_p: float
) -> None:
    kept = nuclei(torch.tensor(rows), top_p=top_p)
    at = 0
    for row, size in zip(rows, kept.sizes_N.tolist(), strict=True):
        probs = softmax(row)
        ids = kept.ids_M[at : at + size].tolist()
        want = smallest_set(probs, top_p)
        # A sum that is top_p to the last bit may end the set one token earlier or later.
        mass = math.fsum(probs[each] for each in want)
        if min(abs(mass - top_p), abs(mass - probs[want[-1]] - top_p)) > 1e-6:
            assert ids == want
        held = kept.probs_M[at : at + size].tolist()
        assert held == pytest.approx([probs[each] for each in ids], rel=1e-5)
        at += size
    assert at == kept.ids_M.numel() == kept.probs_M.numel()


@given(rows=rows, other=st.randoms(use_true_random=False), top_p=st.sampled_from([0.3, 0.9, 1.0]))
def test_acceptance_is_the_sum_of_the_smaller_probability(
    rows: list[list[float]], other: object, top_p: float
) -> None:
    shuffled = [other.sample(row, len(row)) for row in rows]  # type: ignore[attr-defined]
    kept = nuclei(torch.tensor(rows), top_p=top_p)
    ids = iter(kept.ids_M.tolist())
    want = []
    for mine, theirs, size in zip(rows, shuffled, kept.sizes_N.tolist(), strict=True):
        p, q = softmax(mine), softmax(theirs)
        want += [min(p[token], q[token]) for token in (next(ids) for _ in range(size))]
    found = accepted(kept, torch.tensor(shuffled))
    # A logit less the logarithm of the sum is off by a rounding of the larger, each row its own.
    largest = max(abs(each) for row in rows for each in row) + math.log(len(rows[0]))
    assert found == pytest.approx(math.fsum(want), abs=2**-22 * (1 + largest) * len(rows))
    assert found <= kept.mass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("top_p", [0.5, 0.999, 1.0])
def test_a_model_accepts_its_own_nucleus_whole(dtype: torch.dtype, top_p: float) -> None:
    logits = (4 * torch.randn(30, 700, generator=torch.Generator().manual_seed(0))).to(dtype)
    kept = nuclei(logits, top_p=top_p)
    assert accepted(kept, logits) == kept.mass
    assert 30 * top_p - 1e-4 <= kept.mass <= 30 + 1e-4
    assert kept.ids_M.dtype == torch.int16


def test_impossible_tokens_and_certain_ones() -> None:
    logits = torch.tensor([[0.0, -torch.inf, -200.0], [50.0, -torch.inf, -60.0]])
    kept = nuclei(logits, top_p=1.0)
    assert kept.sizes_N.tolist() == [1, 1] and kept.ids_M.tolist() == [0, 0]
    other = torch.tensor([[-torch.inf, 0.0, 0.0], [0.0, 0.0, -torch.inf]])
    assert accepted(kept, other) == 0.5


def test_ids_of_a_large_vocabulary_are_whole() -> None:
    logits = torch.full((2, 40_000), -30.0)
    logits[0, 39_999] = logits[1, 33_000] = 5.0
    kept = nuclei(logits, top_p=0.9)
    assert kept.ids_M.tolist() == [39_999, 33_000] and kept.ids_M.dtype == torch.int32
    assert accepted(kept, logits) == kept.mass
    # 8 bytes for each of two tokens, 4 for each of two sizes.
    assert kept.nbytes == 2 * 8 + 2 * 4

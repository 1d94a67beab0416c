"""Batches hold every token once, in the right fold, whatever their size and padding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.errors import UsageError
from moeprune.observe.batches import batches
from moeprune.observe.domains import Corpus

LENGTHS = st.lists(st.integers(1, 30), max_size=40)


def corpus_of(lengths: list[int], first: int = 0, step: int = 1) -> Corpus:
    return Corpus(
        name="d",
        source="s",
        sha256="",
        total=len(lengths),
        numbers=tuple(range(first, first + step * len(lengths), step)),
        # Every token tells its document and place.
        documents=tuple(
            np.asarray([100 * row + place for place in range(length)], np.int32)
            for row, length in enumerate(lengths)
        ),
    )


@given(
    lengths=LENGTHS,
    max_tokens=st.integers(1, 200),
    side=st.sampled_from(["left", "right"]),
    step=st.integers(1, 5),
)
def test_every_token_once_with_its_fold_and_position(
    lengths: list[int], max_tokens: int, side: str, step: int
) -> None:
    corpus = corpus_of(lengths, first=2, step=step)
    seen: Counter[int] = Counter()
    for batch in batches(corpus, max_tokens=max_tokens, padding_side=side):
        rows, width = batch.ids_BS.shape
        assert rows == 1 or rows * width <= max_tokens
        assert batch.num_tokens == batch.mask_BS.sum()
        for ids, mask, positions, fold in zip(
            batch.ids_BS, batch.mask_BS, batch.positions_BS, batch.fold_BS, strict=True
        ):
            live = mask == 1
            document = int(ids[live][0]) // 100
            assert ids[live].tolist() == corpus.documents[document].tolist()
            assert positions[live].tolist() == list(range(lengths[document]))
            assert set(fold[live]) == {(2 + step * document) % 4}
            assert set(fold[~live]) <= {-1}
            edge = live[0] if side == "right" else live[-1]
            assert edge
            seen.update(ids[live].tolist())
    assert seen == Counter(t for ids in corpus.documents for t in ids.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_little_is_padding(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 101, size=2000).tolist()
    made = list(batches(corpus_of(lengths), max_tokens=1000))
    positions = sum(batch.ids_BS.size for batch in made)
    assert positions <= 1.1 * sum(lengths)


def test_a_long_document_makes_a_batch_of_its_own() -> None:
    made = list(batches(corpus_of([50, 3, 3]), max_tokens=10))
    assert [batch.ids_BS.shape for batch in made] == [(1, 50), (2, 3)]


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="a batch of 0 tokens"):
        list(batches(corpus_of([3]), max_tokens=0))


def test_tokens_before_the_start_are_there_and_not_counted() -> None:
    corpus = replace(corpus_of([9, 4, 6]), starts=(3, 4, 0))
    assert (corpus.num_tokens, corpus.num_counted) == (19, 12)
    for side in ("left", "right"):
        (batch,) = batches(corpus, max_tokens=100, padding_side=side)
        counted = sorted(int(token) for token in batch.ids_BS[batch.counted_BS])
        assert counted == [3, 4, 5, 6, 7, 8, 200, 201, 202, 203, 204, 205]
        targets = sorted(int(token) for token in batch.ids_BS[batch.target_BS])
        assert targets == [3, 4, 5, 6, 7, 8, 201, 202, 203, 204, 205]
        assert corpus.num_targets == len(targets)
        assert batch.num_tokens == 19
    shard = corpus.take_shard(1, 2)
    assert (shard.starts, shard.num_counted) == ((4,), 0)

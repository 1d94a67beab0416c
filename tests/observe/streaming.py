"""A checkpoint calibrated wave by wave, and the same with the model in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeprune.observe.domains import Corpus
from moeprune.observe.load import load_causal_lm
from moeprune.observe.prefill import Due, one_by_one
from moeprune.observe.streamed.model import StreamedModel
from moeprune.observe.streamed.passes import stages_of, waves_of
from moeprune.observe.streamed.stored import Stored
from moeprune.observe.sums import FoldedSums
from moeprune.stages.identify import OpenModel, open_model

Arrays = Mapping[str, Any]


def corpus_of(documents: Sequence[Sequence[int]], *, name: str = "d", starts: Any = ()) -> Corpus:
    return Corpus(
        name=name,
        source=name,
        sha256="0" * 64,
        total=len(documents),
        shard=(0, 1),
        duplicates=0,
        numbers=tuple(range(len(documents))),
        documents=tuple(np.asarray(ids, np.int64) for ids in documents),
        starts=tuple(starts),
    )


def random_documents(lengths: Sequence[int], *, vocab: int = 256, seed: int = 0) -> list[list[int]]:
    draw = np.random.RandomState(seed)
    return [draw.randint(0, vocab, length).tolist() for length in lengths]


def stored_of(opened: OpenModel) -> dict[str, Stored]:
    return {
        name: Stored(
            opened.index.path / entry.file, entry.start, entry.info.dtype, entry.info.shape
        )
        for name, entry in opened.index.entries.items()
    }


def open_streamed(path: Path, **options: Any) -> tuple[OpenModel, StreamedModel]:
    opened = open_model(path)
    streamed = StreamedModel.open(
        path,
        stored_of(opened),
        layout=opened.layout,
        **{"dtype": "auto", "device": torch.device("cpu"), **options},
    )
    return opened, streamed


def streamed_sums(
    path: Path,
    corpora: Sequence[Corpus],
    *,
    batch_tokens: int,
    positions: int,
    memory: int = 1 << 40,
    folder: Path | None = None,
    dtype: str = "auto",
    loss: bool = False,
) -> tuple[list[Arrays], StreamedModel]:
    opened, streamed = open_streamed(path, dtype=dtype)
    sums = [FoldedSums.of(opened.layout, loss=loss) for _ in corpora]
    due = [Due(corpus=corpus, sums=own) for corpus, own in zip(corpora, sums, strict=True)]
    for jobs in waves_of(due, batch_tokens=batch_tokens, positions=positions):
        stages = stages_of(streamed, jobs, sums, layout=opened.layout, memory=memory, folder=folder)
        with closing(stages):
            for _ in stages:
                pass
    return [own.arrays() for own in sums], streamed


def whole_sums(
    path: Path,
    corpora: Sequence[Corpus],
    *,
    batch_tokens: int,
    dtype: str = "auto",
    loss: bool = False,
) -> list[Arrays]:
    opened, live = open_model(path), load_causal_lm(path, dtype=dtype)
    sums = [FoldedSums.of(opened.layout, loss=loss) for _ in corpora]
    due = [Due(corpus=corpus, sums=own) for corpus, own in zip(corpora, sums, strict=True)]
    for _ in one_by_one(live, due, layout=opened.layout, batch_tokens=batch_tokens):
        pass
    return [own.arrays() for own in sums]


def assert_same(mine: Sequence[Arrays], theirs: Sequence[Arrays]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        assert one["tokens"].sum() > 0
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)

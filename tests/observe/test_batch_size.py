"""The size of a batch where the user leaves it open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.layout import MoeLayout
from moeprune.observe import batch_size as module
from moeprune.observe.batch_size import DEFAULT, LARGEST, batch_size, largest
from moeprune.observe.domains import Corpus
from moeprune.observe.load import load_causal_lm
from moeprune.stages.unlisted import lay_out


def corpus(lengths: list[int]) -> Corpus:
    ids = [np.full(length, 7 + place, np.int32) for place, length in enumerate(lengths)]
    return Corpus(
        name="d",
        source="",
        sha256="",
        total=len(ids),
        numbers=tuple(range(len(ids))),
        documents=tuple(ids),
    )


@given(room=st.integers(0, 10**6), total=st.integers(0, 10**7))
def test_the_largest_that_fits(room: int, total: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= room

    found = largest(fits, total=total)
    ladder = [1024 << step for step in range(6)]
    assert found in ladder and found <= LARGEST
    assert asked == ladder[1 : 1 + len(asked)]  # each once, upwards, none beyond one that fails
    if found > 1024:
        assert found <= room and found < 2 * (total // 8)
    if found < min(LARGEST, total // 8):
        assert 2 * found > room


class Gpu:
    """A GPU as torch tells of it: so many bytes, of which a token takes a thousand."""

    def __init__(self, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.peak = free, 0
        self.read: list[int] = []
        for name, answer in {
            "is_available": lambda: True,
            "mem_get_info": lambda _device: (self.free - 100, 10**12),
            "memory_reserved": lambda _device: 100,
            "max_memory_reserved": lambda _device: self.peak,
            "reset_peak_memory_stats": lambda _device: None,
            "empty_cache": lambda: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        real = module.passes

        def passes(model: Any, corpus: Corpus, sums: Any, **how: Any) -> Any:
            self.read.append(corpus.num_tokens)
            assert how["batch_tokens"] == corpus.num_tokens
            self.peak = 1000 * corpus.num_tokens
            return real(model, corpus, sums, **how)

        monkeypatch.setattr(module, "passes", passes)


@pytest.fixture(scope="module")
def live(tiny: Any) -> tuple[Any, MoeLayout]:
    index = CheckpointIndex.open(tiny("qwen3_moe"))
    return load_causal_lm(index.path, device="cpu"), lay_out(index.config, index.tensors)[0]


class OnGpu:
    """The model, which says once that it lies on a GPU, so that trial passes are real ones."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._said = 0

    @property
    def device(self) -> torch.device:
        self._said += 1
        return torch.device("cuda" if self._said == 1 else "cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def test_on_a_cpu_nothing_is_tried(
    live: tuple[Any, MoeLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "largest", None)
    model, layout = live
    assert batch_size(model, [corpus([30])], layout=layout, sharers=1) == DEFAULT


def test_trials_read_the_longest_document(
    live: tuple[Any, MoeLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, layout = live
    seen: list[tuple[int, bool]] = []
    fit = 5000

    def read(_model: Any, _layout: Any, longest: Any, *, rows: int, **_loss: Any) -> bool:
        seen.append((rows, bool((longest == 8).all())))
        return rows * longest.size <= fit

    monkeypatch.setattr(module, "_is_read", read)
    Gpu(10**9, monkeypatch)
    texts = [corpus([40, 500]), corpus([300] * 900)]
    assert batch_size(OnGpu(model), texts, layout=layout, sharers=2) == 4096
    assert seen == [(4, True), (8, True), (16, True)]
    assert batch_size(OnGpu(model), texts, layout=layout, sharers=20) == 2048  # 8 batches each


@pytest.mark.parametrize("free", [10**9, 4_500_000])
def test_memory_is_left(
    free: int, live: tuple[Any, MoeLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, layout = live
    gpu = Gpu(free, monkeypatch)
    found = batch_size(OnGpu(model), [corpus([256] * 128)], layout=layout, sharers=1)
    assert gpu.read == [2048, 4096]
    assert found == (4096 if free == 10**9 else 2048)  # it fits, but next to nothing is left


def test_what_does_not_fit_ends_the_trial(
    live: tuple[Any, MoeLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, layout = live
    calls: list[int] = []

    def full(*_: Any, **__: Any) -> None:
        calls.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    hook = model.model.register_forward_pre_hook(full)
    try:
        Gpu(10**9, monkeypatch)
        assert batch_size(OnGpu(model), [corpus([64] * 640)], layout=layout, sharers=1) == 1024
    finally:
        hook.remove()
    assert calls == [1]

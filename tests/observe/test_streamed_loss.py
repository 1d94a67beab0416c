"""The loss of a model read a layer at a time: forward and back through its files."""

from __future__ import annotations

import gc
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streaming import (
    assert_same,
    corpus_of,
    open_streamed,
    random_documents,
    stored_of,
    streamed_sums,
    whole_sums,
)
from tiny import tiny_checkpoint

from moeprune.core.domain_stats import LOSS_FIELDS
from moeprune.errors import CheckpointError
from moeprune.observe.domains import Corpus
from moeprune.observe.prefill import Due
from moeprune.observe.streamed import activations
from moeprune.observe.streamed.passes import stages_of, waves_of
from moeprune.observe.streamed.probe import probe
from moeprune.observe.streamed.sizing import sized
from moeprune.observe.streamed.spill import Spill
from moeprune.observe.sums import FoldedSums

LENGTHS = [30, 17, 9, 25, 40, 12, 5, 1]


@pytest.fixture
def corpora() -> list[Corpus]:
    """Two domains; of one, answers are targets, and one document has none."""
    answers = corpus_of(random_documents([14, 22, 33, 20], seed=1), name="e")
    targets = [np.arange(ids.size) > ids.size // 2 for ids in answers.documents]
    targets[2][:] = False
    return [corpus_of(random_documents(LENGTHS)), replace(answers, targets=tuple(targets))]


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_sums_are_those_of_the_model_in_memory(
    family: str, tiny: Any, corpora: list[Corpus]
) -> None:
    want = whole_sums(tiny(family), corpora, batch_tokens=60, loss=True)
    assert set(LOSS_FIELDS) <= want[0].keys()
    assert all(np.abs(own[name]).sum() > 0 for own in want for name in LOSS_FIELDS)
    for positions in (1, 130, 1000):
        found, _ = streamed_sums(
            tiny(family), corpora, batch_tokens=60, positions=positions, loss=True
        )
        assert_same(found, want)


@pytest.mark.parametrize("memory", [0, 40_000])
def test_what_waits_in_files_changes_nothing(
    memory: int, tiny: Any, corpora: list[Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "_SMALL", 1)
    made: list[int] = []
    put = Spill.put
    monkeypatch.setattr(
        Spill, "put", lambda own, piece: made.append(piece.nbytes) or put(own, piece)
    )
    found, _ = streamed_sums(
        tiny("qwen3_moe"),
        corpora,
        batch_tokens=60,
        positions=1000,
        memory=memory,
        folder=tmp_path,
        loss=True,
    )
    assert len(made) > 10
    assert_same(found, whole_sums(tiny("qwen3_moe"), corpora, batch_tokens=60, loss=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_number_types(dtype: str, tiny: Any, corpora: list[Corpus]) -> None:
    how: dict[str, Any] = {"batch_tokens": 60, "dtype": dtype, "loss": True}
    found, _ = streamed_sums(tiny("qwen3_moe"), corpora, positions=200, **how)
    assert_same(found, whole_sums(tiny("qwen3_moe"), corpora, **how))


def test_a_head_that_is_the_embeddings(tmp_path: Path, corpora: list[Corpus]) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m", tie_word_embeddings=True)
    found, _ = streamed_sums(path, corpora, batch_tokens=60, positions=1000, loss=True)
    assert_same(found, whole_sums(path, corpora, batch_tokens=60, loss=True))


def test_forward_and_back_one_unit_at_a_time(tiny: Any, corpora: list[Corpus]) -> None:
    """No layer is read more than twice, and the weights of none outlive its stage."""
    opened, streamed = open_streamed(tiny("qwen3_moe"))
    sums = [FoldedSums.of(opened.layout, loss=True) for _ in corpora]
    weights: dict[str, weakref.ref[Any]] = {}
    load, free = streamed.weights.load, streamed.weights.free

    def loading(unit: Any) -> None:
        load(unit)
        if not unit.name:  # what is always there
            return
        assert not any(tensor.requires_grad for tensor in unit.module.parameters())
        weights.update(
            (name, weakref.ref(tensor)) for name, tensor in unit.module.named_parameters()
        )

    def freeing(unit: Any) -> None:
        free(unit)
        gc.collect()
        if unit.layer:
            assert not [name for name, tensor in weights.items() if tensor() is not None]
        weights.clear()

    streamed.weights.load, streamed.weights.free = loading, freeing  # type: ignore[method-assign]
    order = [stage.unit.name for stage in _run(streamed, corpora, sums, opened.layout)]
    layers = [f"model.layers.{number}" for number in range(4)]
    way = ["model.embed_tokens", *layers, "model.norm", "lm_head"]
    assert order == [*way, "model.norm", *reversed(layers)]
    assert torch.is_grad_enabled()


def test_what_waits_is_bounded(
    tiny: Any, corpora: list[Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that waiting passes have in memory, looked at from outside after each unit."""
    monkeypatch.setattr(activations, "_SMALL", 1)
    most: dict[int, int] = {}
    for memory, folder in ((1 << 40, None), (60_000, tmp_path)):
        opened, streamed = open_streamed(tiny("qwen3_moe"))
        sums = [FoldedSums.of(opened.layout, loss=True) for _ in corpora]
        (jobs,) = waves_of(_due(corpora, sums), batch_tokens=60, positions=1000)
        before = _tensor_bytes()
        stages = stages_of(streamed, jobs, sums, layout=opened.layout, memory=memory, folder=folder)
        with closing(stages):
            most[memory] = max(_tensor_bytes() - before for _ in stages)
    assert most[1 << 40] > 150_000
    assert most[60_000] < 75_000


def _tensor_bytes() -> int:
    """Of all tensors that there are, weights aside."""
    gc.collect()
    tensors = [
        thing
        for thing in gc.get_objects()
        if type(thing) is torch.Tensor and thing.device.type == "cpu"
    ]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def test_a_wave_that_is_left_leaves_nothing(tiny: Any, corpora: list[Corpus]) -> None:
    opened, streamed = open_streamed(tiny("qwen3_moe"))
    sums = [FoldedSums.of(opened.layout, loss=True) for _ in corpora]
    for stages_taken in (3, 7, 9):
        with closing(_run(streamed, corpora, sums, opened.layout)) as stages:
            for _ in range(stages_taken):
                next(stages)
        assert torch.is_grad_enabled()
        assert not any("forward" in vars(layer) for layer in streamed.model.model.layers)
        assert all(tensor.is_meta for tensor in streamed.model.model.layers.parameters())


def test_a_head_that_no_file_holds(tiny: Any) -> None:
    opened, streamed = open_streamed(tiny("qwen3_moe"))
    streamed.check_head()
    stored = stored_of(opened)
    del stored["lm_head.weight"]
    streamed = type(streamed).open(
        tiny("qwen3_moe"), stored, layout=opened.layout, dtype="auto", device=torch.device("cpu")
    )
    with pytest.raises(CheckpointError, match=r"lm_head.weight is not in the files"):
        streamed.check_head()


def test_waves_are_planned_for_the_way_back(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m", num_hidden_layers=10)
    corpora = [corpus_of(random_documents([400, 30]))]
    opened, streamed = open_streamed(path)
    plain = probe(streamed, corpora, layout=opened.layout)
    seen = probe(streamed, corpora, layout=opened.layout, loss=True)
    assert all(tensor.is_meta for tensor in streamed.model.model.layers.parameters())
    assert not any("forward" in vars(layer) for layer in streamed.model.model.layers)
    assert seen.kept == pytest.approx(32 * 4, rel=0.2)  # hidden size, float32
    assert seen.held < 2 * plain.held
    assert seen.called == plain.called | {"model.norm", "lm_head"}
    how: dict[str, Any] = {"allowed": 10**10, "base": 10**9}
    sizes = [400] * 10**5
    found = [
        sized(streamed, one, sizes, memory=2 * 10**9, disk_free=0, **how) for one in (plain, seen)
    ]
    layers = sum(streamed.weights.bytes_of(unit)[1] for unit in streamed.units if unit.layer)
    head = streamed.weights.bytes_of(streamed.head)[1]  # type: ignore[arg-type]
    assert found[1].wave_bytes - found[0].wave_bytes == pytest.approx(layers + head, abs=1000)
    assert "forward and back" in str(found[1]) and "back" not in str(found[0])
    assert 0 < found[1].positions * (seen.held + 10 * seen.kept) < 10**9
    with_disk = sized(streamed, seen, sizes, memory=1_800_000_000, disk_free=10**12, **how)
    without = sized(streamed, seen, sizes, memory=1_800_000_000, disk_free=0, **how)
    assert not without.spills
    assert with_disk.positions >= without.positions


def _due(corpora: list[Corpus], sums: list[FoldedSums]) -> list[Due]:
    return [Due(corpus=corpus, sums=own) for corpus, own in zip(corpora, sums, strict=True)]


def _run(streamed: Any, corpora: list[Corpus], sums: list[FoldedSums], layout: Any) -> Any:
    (jobs,) = waves_of(_due(corpora, sums), batch_tokens=60, positions=1000)
    return stages_of(streamed, jobs, sums, layout=layout, memory=1 << 40, folder=None)

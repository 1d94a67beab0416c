"""A model read a layer at a time gives the sums of the same model in memory, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import greenlet
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
from tiny import FAMILIES, tiny_checkpoint

from moeprune.errors import CheckpointError
from moeprune.observe.batches import batch_sizes
from moeprune.observe.domains import Corpus
from moeprune.observe.prefill import Due
from moeprune.observe.streamed import activations
from moeprune.observe.streamed.frames import own_storages
from moeprune.observe.streamed.model import StreamedModel
from moeprune.observe.streamed.passes import stages_of, waves_of
from moeprune.observe.streamed.sizing import num_waves
from moeprune.observe.streamed.spill import Spill, spill
from moeprune.observe.streamed.units import Unit
from moeprune.observe.streamed.wave import wave
from moeprune.observe.sums import FoldedSums

KEPT = [torch.zeros(100)]
LENGTHS = [30, 17, 9, 25, 40, 12, 5]


@pytest.fixture
def corpora() -> list[Corpus]:
    """Two domains; of one, the beginnings are not counted."""
    return [
        corpus_of(random_documents(LENGTHS)),
        corpus_of(random_documents([14, 22, 33], seed=1), name="e", starts=(3, 0, 20)),
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_are_those_of_the_model_in_memory(
    family: str, tiny: Any, corpora: list[Corpus]
) -> None:
    want = whole_sums(tiny(family), corpora, batch_tokens=60)
    for positions in (1, 130, 1000):
        found, _ = streamed_sums(tiny(family), corpora, batch_tokens=60, positions=positions)
        assert_same(found, want)


@pytest.mark.parametrize("family", ["qwen3_moe", "llama4_text", "qwen3_5_moe"])
def test_what_waits_in_files_changes_nothing(
    family: str, tiny: Any, corpora: list[Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "_SMALL", 1)
    made = []
    put = Spill.put
    monkeypatch.setattr(Spill, "put", lambda own, piece: made.append(piece) or put(own, piece))
    found, _ = streamed_sums(
        tiny(family), corpora, batch_tokens=60, positions=1000, memory=0, folder=tmp_path
    )
    assert len(made) > 50
    assert_same(found, whole_sums(tiny(family), corpora, batch_tokens=60))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_number_types(dtype: str, tiny: Any, corpora: list[Corpus]) -> None:
    for family in ("gpt_oss", "deepseek_v3"):
        found, streamed = streamed_sums(
            tiny(family), corpora, batch_tokens=60, positions=200, dtype=dtype
        )
        assert str(streamed.model.dtype) == f"torch.{dtype}"
        assert_same(found, whole_sums(tiny(family), corpora, batch_tokens=60, dtype=dtype))


def test_embeddings_that_only_the_head_stores(tmp_path: Path, corpora: list[Corpus]) -> None:
    """Tied weights are stored once, under either name."""
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m", tie_word_embeddings=True)
    want = whole_sums(path, corpora, batch_tokens=60)
    opened, _ = open_streamed(path)
    stored = stored_of(opened)
    stored["lm_head.weight"] = stored.pop("model.embed_tokens.weight")
    streamed = _open(path, stored)
    sums = [FoldedSums.of(opened.layout) for _ in corpora]
    for _ in _run(streamed, corpora, sums, opened.layout):
        pass
    assert_same([own.arrays() for own in sums], want)


def test_shards_and_a_head_that_is_never_read(tmp_path: Path, corpora: list[Corpus]) -> None:
    path = tiny_checkpoint("mixtral", tmp_path / "m", max_shard_size="60KB")
    opened, _ = open_streamed(path)
    assert len(opened.index.files) > 3
    found, streamed = streamed_sums(path, corpora, batch_tokens=60, positions=1000)
    assert_same(found, whole_sums(path, corpora, batch_tokens=60))
    head = opened.index.entries["lm_head.weight"].info.nbytes
    assert streamed.weights.bytes_read == opened.index.total_bytes - head


def test_at_most_one_unit_is_in_memory_and_all_is_put_back(
    tiny: Any, corpora: list[Corpus]
) -> None:
    opened, streamed = open_streamed(tiny("qwen3_moe"))
    sums = [FoldedSums.of(opened.layout) for _ in corpora]
    seen: list[set[str]] = []

    class Look:
        def before(self, waiting: Any) -> None:
            if waiting.wants is not None:
                seen.append({_unit(name) for name in _present(streamed.model)})
                assert seen[-1] == {waiting.wants.name}

        def after(self, waiting: Any) -> None:
            pass

    order = [
        stage.unit.name for stage in _run(streamed, corpora, sums, opened.layout, meters=(Look(),))
    ]
    layers = [f"model.layers.{number}" for number in range(4)]
    assert order == ["model.embed_tokens", *layers, "model.norm"]
    assert len(seen) > 20
    _assert_as_it_was(streamed)


def test_a_wave_that_is_left_leaves_nothing(tiny: Any, corpora: list[Corpus]) -> None:
    opened, streamed = open_streamed(tiny("qwen3_moe"))
    sums = [FoldedSums.of(opened.layout) for _ in corpora]
    with closing(_run(streamed, corpora, sums, opened.layout)) as stages:
        next(stages)
        next(stages)
        assert "forward" in vars(streamed.model.model.layers[1])
    _assert_as_it_was(streamed)


def test_a_weight_that_is_missing_or_of_another_shape(tiny: Any, corpora: list[Corpus]) -> None:
    opened, _ = open_streamed(tiny("deepseek_v3"))
    name = "model.layers.1.self_attn.o_proj.weight"
    whole = stored_of(opened)
    sums = [FoldedSums.of(opened.layout) for _ in corpora]
    without = {key: entry for key, entry in whole.items() if key != name}
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.o_proj.* not in the files"):
        _open(tiny("deepseek_v3"), without)  # before anything is read
    rows, width = whole[name].shape
    other = whole | {name: replace(whole[name], shape=(rows // 2, width))}
    with pytest.raises(CheckpointError, match=r"has shape \[16, 32\], config.json makes it"):
        _open(tiny("deepseek_v3"), other)
    expert = "model.layers.1.mlp.experts.3.up_proj.weight"
    fewer = {key: entry for key, entry in whole.items() if key != expert}
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.experts"):
        list(_run(_open(tiny("deepseek_v3"), fewer), corpora, sums, opened.layout))
    extra = whole | {"model.layers.1.mlp.experts.3.third_proj.weight": whole[name]}
    with pytest.raises(CheckpointError, match=r"no place for .*third_proj"):
        _open(tiny("deepseek_v3"), extra)


def test_a_file_that_ends_too_early(tmp_path: Path, corpora: list[Corpus]) -> None:
    path = tiny_checkpoint("mixtral", tmp_path / "m")
    opened, streamed = open_streamed(path)
    file = path / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    sums = [FoldedSums.of(opened.layout) for _ in corpora]
    with pytest.raises(CheckpointError, match="ends before its last tensor does"):
        list(_run(streamed, corpora, sums, opened.layout))
    _assert_as_it_was(streamed)


def test_waves_hold_every_batch_once_in_order() -> None:
    due = [
        Due(corpus=corpus_of(random_documents(LENGTHS)), sums=None),  # type: ignore[arg-type]
        Due(corpus=corpus_of(random_documents([50, 50]), name="e"), sums=None, skip=1),  # type: ignore[arg-type]
    ]
    whole = next(iter(waves_of(due, batch_tokens=50, positions=10**9)))
    assert {job.domain for job in whole} == {0, 1}
    assert sum(job.domain for job in whole) == 1
    for positions in (1, 60, 120):
        waves = list(waves_of(due, batch_tokens=50, positions=positions))
        flat = [job for jobs in waves for job in jobs]
        assert [job.batch.number_B.tolist() for job in flat] == [
            job.batch.number_B.tolist() for job in whole
        ]
        sizes = [job.batch.ids_BS.size for job in flat]
        own = batch_sizes(due[0].corpus, max_tokens=50), batch_sizes(due[1].corpus, max_tokens=50)
        assert sizes == [*own[0], *own[1][1:]]
        assert num_waves(sizes, positions) == len(waves)
        for jobs in waves:
            assert len(jobs) == 1 or sum(job.batch.ids_BS.size for job in jobs) <= positions


def test_only_what_is_the_passs_own_is_moved() -> None:
    """What a module keeps, what two tensors share with the outside, and views."""

    def run() -> None:
        mine = torch.ones(300)
        view = mine[7:]
        outside = KEPT[0][3:]
        inside = {"a": [torch.ones(50)], "b": (view,)}
        greenlet.getcurrent().parent.switch()
        assert float(view.sum() + outside.sum() + inside["a"][0].sum()) == 293 + 50

    one = greenlet.greenlet(run)
    one.switch()
    found = sorted(storage.nbytes() for storage in own_storages(one.gr_frame))
    assert found == [200, 1200]
    one.switch()


def test_what_passes_share_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tensor object in the frames of all passes, as a mask that a library caches."""
    monkeypatch.setattr(activations, "_SMALL", 1)
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    units = [Unit("first", first, ()), Unit("second", second, ())]
    inputs = [torch.randn(5, 8) for _ in range(3)]
    found: dict[int, torch.Tensor] = {}

    def job(place: int) -> None:
        cached = KEPT[0]
        own = inputs[place] * 2
        inner = first(own)
        found[place] = second(inner + own) + cached[:8] + KEPT[0][8:16]

    with spill(tmp_path) as file, torch.inference_mode():
        keeper = activations.Activations(memory=0, spill=file)
        for _ in wave(
            [partial(job, place) for place in range(3)],
            units=units,
            store=Nothing(),
            keepers=(keeper,),
        ):
            assert KEPT[0].untyped_storage().nbytes() == 400
        for place, given in enumerate(inputs):
            assert torch.equal(found[place], second(first(given * 2) + given * 2))
    assert keeper.spilled == 2 * (2 * 5 * 8 * 4 + 2 * 5 * 8 * 4)


class Nothing:
    """A store of units that are always there."""

    def load(self, unit: Unit) -> None: ...

    def free(self, unit: Unit) -> None: ...


def _open(path: Path, stored: Any) -> StreamedModel:
    opened, _ = open_streamed(path)
    return StreamedModel.open(
        path, stored, layout=opened.layout, dtype="auto", device=torch.device("cpu")
    )


def _run(
    streamed: StreamedModel, corpora: list[Corpus], sums: Any, layout: Any, **options: Any
) -> Iterator[Any]:
    due = [Due(corpus=corpus, sums=own) for corpus, own in zip(corpora, sums, strict=True)]
    (jobs,) = waves_of(due, batch_tokens=60, positions=10**9)
    how = {"memory": 1 << 40, "folder": None, **options}
    return stages_of(streamed, jobs, sums, layout=layout, **how)


def _present(model: Any) -> list[str]:
    return [
        name
        for name, tensor in model.named_parameters()
        if not tensor.is_meta and tensor.stride() != (0, 0)
    ]


def _unit(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:3] if parts[1] == "layers" else parts[:2])


def _assert_as_it_was(streamed: StreamedModel) -> None:
    assert _present(streamed.model) == []
    for module in streamed.model.modules():
        assert "forward" not in vars(module)
        assert not module._forward_hooks

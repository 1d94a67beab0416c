from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_safetensors import folder
from safetensors.numpy import load_file

from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.shards import shards_for
from moeprune.checkpoint.sidecars import sidecars_of
from moeprune.checkpoint.writer import contents_of
from moeprune.checkpoint.writer import write_checkpoint as write_contents
from moeprune.core.layout import TensorInfo
from moeprune.core.progress import Progress
from moeprune.errors import CheckpointError, OutputError

INDEX = "model.safetensors.index.json"


def name_of(number: int, total: int) -> str:
    return f"model-{number:05d}-of-{total:05d}.safetensors"


def array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ARRAYS = {
    "norm": array(1, 5),
    "experts.0.w": array(2, 2, 3),
    "experts.1.w": array(3, 2, 3),
    "gate": array(4, 4, 6),
    "bias": array(5, 1, 4),
    "experts.2.w": array(6, 2, 3),
    "experts.3.w": array(7, 2, 3),
    "head": array(8, 3, 2),
}
SPREAD = {1: ["norm", "experts.1.w"], 2: ["experts.0.w", "experts.2.w"], 3: ["experts.3.w", "gate"]}
SPREAD[3] += ["bias", "head"]
TEXTS = {"config.json": '{"num_experts": 2}\n', "README.md": "größe\n"}


def row(name: str) -> tuple[str, str, Sequence[int], bytes]:
    return name, "F32", ARRAYS[name].shape, ARRAYS[name].tobytes()


def sharded(path: Path) -> CheckpointIndex:
    tables = {name_of(n, 3): [row(name) for name in names] for n, names in SPREAD.items()}
    return CheckpointIndex.open(folder(path, tables))


def single(path: Path) -> CheckpointIndex:
    return CheckpointIndex.open(folder(path, {"model.safetensors": [row(n) for n in ARRAYS]}))


def edits(index: CheckpointIndex) -> list[TensorEdit]:
    """Experts 1 and 3 stay, as 0 and 1; the router is cut on axis 0, its bias on axis 1."""
    tensors = index.tensors
    made = [
        TensorEdit(source=name, target=target, info=tensors[name])
        for name, target in [
            ("norm", "norm"),
            ("experts.1.w", "experts.0.w"),
            ("experts.3.w", "experts.1.w"),
            ("head", "head"),
        ]
    ]
    ids = (1, 3)
    gate, bias = TensorInfo("F32", (2, 6), 48), TensorInfo("F32", (1, 2), 8)
    made.append(TensorEdit(source="gate", target="gate", info=gate, ids=ids, axis=0))
    made.append(TensorEdit(source="bias", target="bias", info=bias, ids=ids, axis=1))
    return made


EXPECTED = {
    "norm": ARRAYS["norm"],
    "experts.0.w": ARRAYS["experts.1.w"],
    "experts.1.w": ARRAYS["experts.3.w"],
    "gate": ARRAYS["gate"][[1, 3]],
    "bias": ARRAYS["bias"][:, [1, 3]],
    "head": ARRAYS["head"],
}


def write_checkpoint(
    index: CheckpointIndex,
    made: Sequence[TensorEdit],
    output: Path,
    *,
    texts: Mapping[str, str],
    shard_bytes: int | None = None,
    **options: Any,
) -> Path:
    contents = contents_of(index, made, texts=texts, shard_bytes=shard_bytes)
    return write_contents(index, contents, output, **options)


def snapshot(path: Path) -> dict[str, bytes]:
    return {
        item.relative_to(path).as_posix(): item.read_bytes()
        for item in path.rglob("*")
        if item.is_file()
    }


def assert_holds_expected(arrays: dict[str, np.ndarray]) -> None:
    assert set(arrays) == set(EXPECTED)
    for name, value in EXPECTED.items():
        assert arrays[name].dtype == value.dtype and arrays[name].tobytes() == value.tobytes()
        assert arrays[name].shape == value.shape


def test_a_single_file_stays_single(tmp_path: Path) -> None:
    index = single(tmp_path / "m")
    out = write_checkpoint(index, edits(index), tmp_path / "out", texts=TEXTS)
    assert sorted(snapshot(out)) == ["README.md", "config.json", "model.safetensors"]
    assert_holds_expected(load_file(out / "model.safetensors"))
    made = CheckpointIndex.open(out)
    assert made.metadata == {"model.safetensors": {"format": "pt"}}
    order = ["norm", "experts.0.w", "gate", "bias", "experts.1.w", "head"]
    assert list(made.entries) == order  # of the source's disk
    assert min(entry.start for entry in made.entries.values()) % 8 == 0
    assert (out / "README.md").read_text(encoding="utf-8") == "größe\n"


def test_shards_mirror_the_source_and_empty_ones_leave(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")
    out = write_checkpoint(index, edits(index), tmp_path / "out", texts=TEXTS)
    first, second = name_of(1, 2), name_of(2, 2)
    assert sorted(snapshot(out)) == ["README.md", "config.json", first, second, INDEX]
    assert_holds_expected(load_file(out / first) | load_file(out / second))
    body = json.loads((out / INDEX).read_text())
    assert body["metadata"] == {"total_size": sum(v.nbytes for v in EXPECTED.values())}
    assert body["weight_map"] == {
        "norm": first,
        "experts.0.w": first,
        "gate": second,
        "bias": second,
        "experts.1.w": second,
        "head": second,
    }
    CheckpointIndex.open(out)


def test_shard_names_of_another_form_stay(tmp_path: Path) -> None:
    tables = {f"part{n}.safetensors": [row(x) for x in names] for n, names in SPREAD.items()}
    index = CheckpointIndex.open(folder(tmp_path / "m", tables))
    assert [s.name for s in shards_for(index, edits(index))] == [
        "part1.safetensors",
        "part3.safetensors",
    ]
    with pytest.raises(CheckpointError, match="no tensor would stay"):
        shards_for(index, [])


def test_total_parameters_follow_where_the_source_states_them(tmp_path: Path) -> None:
    stored = sum(value.size for value in ARRAYS.values())
    remaining = sum(value.size for value in EXPECTED.values())
    weight_map = {x: name_of(n, 3) for n, names in SPREAD.items() for x in names}
    tables = {name_of(n, 3): [row(x) for x in names] for n, names in SPREAD.items()}
    for stated, expected in ((stored, remaining), (2 * stored, 2 * remaining), ("many", "many")):
        metadata = {"total_size": 1, "total_parameters": stated, "note": "größe"}
        made = {"metadata": metadata, "weight_map": weight_map}
        path = tmp_path / f"m{stated}"
        index = CheckpointIndex.open(folder(path, tables, index=made))
        out = write_checkpoint(index, edits(index), tmp_path / f"out{stated}", texts=TEXTS)
        found = json.loads((out / INDEX).read_text())["metadata"]
        assert found == {
            "total_size": remaining * 4,
            "total_parameters": expected,
            "note": "größe",
        }


def test_other_files_go_along_and_other_weights_do_not(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")
    root = index.path
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("s")
    taken = {
        "tokenizer.json": b"\x00\xff\r\n",
        "größe.py": b"x = 1\n",
        "sub/deep/template.jinja": b"t",
        "sub/config.json": b"{}",
        "sub/README.md": b"kept",
        ".gitattributes": b"*",
        "empty.txt": b"",
    }
    left = [
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "consolidated.00.pth",
        "m.gguf",
        "model.fp16.safetensors",
        "original/model.safetensors",
        "original/model.safetensors.index.json",
        "onnx/model.onnx",
        "onnx/model.onnx_data",
    ]
    replaced = ["README.md", "moeprune.json"]
    hidden = [".git/HEAD", ".cache/huggingface/x.json", "sub/.ipynb_checkpoints/x.py"]
    for name, data in [*taken.items(), *((name, b"w") for name in (*left, *replaced, *hidden))]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "linked.txt").symlink_to(outside / "secret.txt")  # as the Hub's cache has them
    (root / "linked_folder").symlink_to(outside)
    (root / "dangling").symlink_to(outside / "nothing")
    os.mkfifo(root / "pipe")
    texts = TEXTS | {"moeprune.json": "{}"}
    assert sidecars_of(index, replaced=texts).left == tuple(sorted([*left, "linked_folder"]))
    out = write_checkpoint(index, edits(index), tmp_path / "out", texts=texts)
    found = snapshot(out)
    assert found.pop("linked.txt") == b"s" and not (out / "linked.txt").is_symlink()
    for name in (name_of(1, 2), name_of(2, 2), INDEX, *texts):
        del found[name]
    assert found == taken
    assert not (out / "linked_folder").exists()


def test_two_runs_give_the_same_bytes(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")
    one = write_checkpoint(index, edits(index), tmp_path / "1", texts=TEXTS)
    two = write_checkpoint(index, edits(index)[::-1], tmp_path / "2", texts=TEXTS)
    assert snapshot(one) == snapshot(two)


def test_progress_ends_at_the_bytes_written(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")
    (index.path / "tokenizer.json").write_bytes(bytes(1000))
    seen: list[Progress] = []
    out = write_checkpoint(
        index, edits(index), tmp_path / "out", texts=TEXTS, on_progress=seen.append
    )
    written = sum(len(data) for data in snapshot(out).values())
    assert (seen[-1].done, seen[-1].total, seen[-1].unit) == (written, written, "bytes")
    assert [p.done for p in seen] == sorted(p.done for p in seen)


def test_progress_comes_in_the_thread_that_asked(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")
    threads: set[int] = set()
    write_checkpoint(
        index,
        edits(index),
        tmp_path / "out",
        texts=TEXTS,
        on_progress=lambda _: threads.add(threading.get_ident()),
    )
    assert threads == {threading.get_ident()}
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("export")]  # none goes on


@pytest.mark.parametrize("kernel", [True, False])
def test_a_disk_that_fills_leaves_nothing(
    kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = sharded(tmp_path / "m")
    before = snapshot(tmp_path)
    calls = 0

    def full(*arguments: int) -> int:
        nonlocal calls
        calls += 1
        if calls < 3:
            return real(*arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    if kernel:
        real = os.copy_file_range
        monkeypatch.setattr(os, "copy_file_range", full)
    else:
        real = os.fsync
        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*out: it needs .* bytes, .* free"):
        write_checkpoint(index, edits(index), tmp_path / "out", texts=TEXTS)
    assert snapshot(tmp_path) == before and sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")

    def interrupt(progress: Progress) -> None:
        if progress.done > progress.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(index, edits(index), tmp_path / "out", texts=TEXTS, on_progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_source_that_shrinks_or_vanishes_leaves_nothing(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")
    shard = index.path / name_of(3, 3)
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="ends early"):
        write_checkpoint(index, edits(index), tmp_path / "out", texts=TEXTS)
    shard.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        write_checkpoint(index, edits(index), tmp_path / "out", texts=TEXTS)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("length", range(8))
def test_the_data_starts_at_a_multiple_of_eight(length: int, tmp_path: Path) -> None:
    tensor = TensorInfo("F32", (5,), 20)
    index = CheckpointIndex.open(folder(tmp_path, {"model.safetensors": [row("norm")]}))
    (shard,) = shards_for(
        index, [TensorEdit(source="norm", target="n" * (1 + length), info=tensor)]
    )
    assert len(shard.header) % 8 == 0
    assert int.from_bytes(shard.header[:8], "little") == len(shard.header) - 8
    assert "n" * (1 + length) in json.loads(shard.header[8:])

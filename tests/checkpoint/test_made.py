"""Makings: made ahead by several threads, written in order, bounded, ended with the file."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from raw_safetensors import folder, noise
from safetensors.numpy import load_file

from moeprune.checkpoint import made
from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.making import Making, Piece
from moeprune.checkpoint.writer import contents_of, write_checkpoint
from moeprune.core.layout import TensorInfo
from moeprune.errors import CheckpointError

COUNT, SIZE = 40, 64


def source(path: Path, files: int = 1) -> CheckpointIndex:
    """Bytes in ``w.<i>``, some of them followed by a tensor that stays."""
    rows: list[list[Any]] = [[] for _ in range(files)]
    for number in range(COUNT):
        rows[number * files // COUNT].append((f"w.{number}", "U8", [SIZE], noise(number, SIZE)))
        if number % 3 == 0:
            rows[number * files // COUNT].append((f"n.{number}", "U8", [4], noise(900 + number, 4)))
    names = [f"model-{n + 1:05d}-of-{files:05d}.safetensors" for n in range(files)]
    if files == 1:
        names = ["model.safetensors"]
    return CheckpointIndex.open(folder(path, dict(zip(names, rows, strict=True))))


def turned(data: bytes) -> list[bytes]:
    """What the makings of these tests make: all but the last byte backwards, and the last one."""
    return [bytes(data[:-1])[::-1], bytes(data[-1:])]


def edits(index: CheckpointIndex, make: Any = lambda data: turned(data[0])) -> list[TensorEdit]:
    found = []
    for name, entry in index.entries.items():
        if name.startswith("n."):
            found.append(TensorEdit(source=name, target=name, info=entry.info))
            continue
        making = Making(
            pieces=(Piece(name, "U8", (SIZE,), 0, SIZE),), make=make, sizes=(SIZE - 1, 1)
        )
        for part, size in enumerate(making.sizes):
            info = TensorInfo("U8", (size,), size)
            target = f"{name}.{part}"
            found.append(
                TensorEdit(source=name, target=target, info=info, making=making, part=part)
            )
    return found


def written(index: CheckpointIndex, edits: list[TensorEdit], out: Path, **options: Any) -> Path:
    return write_checkpoint(index, contents_of(index, edits, texts={}, **options), out)


def read(path: Path) -> dict[str, bytes]:
    return {
        name: bytes(array)
        for file in sorted(path.glob("*.safetensors"))
        for name, array in load_file(file).items()
    }


def expected() -> dict[str, bytes]:
    found = {}
    for number in range(COUNT):
        parts = turned(noise(number, SIZE))
        found |= {f"w.{number}.{part}": data for part, data in enumerate(parts)}
        if number % 3 == 0:
            found[f"n.{number}"] = noise(900 + number, 4)
    return found


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("shard_bytes", [None, 200])
def test_what_is_made_lies_in_order_whoever_is_first(
    files: int, shard_bytes: int | None, tmp_path: Path
) -> None:
    index = source(tmp_path / "m", files)

    def slowly(data: Any) -> list[bytes]:
        time.sleep((data[0][0] % 5) / 1000)
        return turned(data[0])

    out = written(index, edits(index, slowly), tmp_path / "out", shard_bytes=shard_bytes)
    assert read(out) == expected()


def test_several_threads_make_and_few_are_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = source(tmp_path / "m")
    monkeypatch.setattr(made, "_processors", lambda: 4)
    monkeypatch.setattr(made, "_BYTES_AHEAD", 6 * 2 * SIZE)
    at_once, threads = [0], set()
    together = threading.Barrier(4)
    lock = threading.Lock()
    most = [0]

    def make(data: Any) -> list[bytes]:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            threads.add(threading.current_thread().name)
        together.wait(10)  # broken, and an error, unless four are made at once
        with lock:
            at_once[0] -= 1
        return turned(data[0])

    assert read(written(index, edits(index, make), tmp_path / "out")) == expected()
    assert most[0] == 4
    assert all(name.startswith("making") for name in threads)


def test_what_is_ahead_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = source(tmp_path / "m")
    monkeypatch.setattr(made, "_processors", lambda: 4)
    monkeypatch.setattr(made, "_BYTES_AHEAD", 2 * 2 * SIZE + 1)
    at_once, most = [0], [0]
    lock = threading.Lock()

    def make(data: Any) -> list[bytes]:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        time.sleep(0.002)
        with lock:
            at_once[0] -= 1
        return turned(data[0])

    assert read(written(index, edits(index, make), tmp_path / "out")) == expected()
    assert most[0] == 2
    monkeypatch.setattr(made, "_BYTES_AHEAD", 1)
    most[0] = 0
    assert read(written(index, edits(index, make), tmp_path / "alone")) == expected()
    assert most[0] == 1


def test_a_making_that_fails_ends_the_export_and_all_threads(tmp_path: Path) -> None:
    index = source(tmp_path / "m", 3)
    calls = []

    def make(data: Any) -> list[bytes]:
        calls.append(1)
        if data[0] == noise(4, SIZE):
            raise CheckpointError("w.4: it does not work.")
        return turned(data[0])

    with pytest.raises(CheckpointError, match=r"^w\.4: it does not work\.$"):
        written(index, edits(index, make), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not [t for t in threading.enumerate() if t.name.startswith("making")]
    assert len(calls) < COUNT


def test_what_is_made_has_the_size_that_was_stated(tmp_path: Path) -> None:
    index = source(tmp_path / "m")
    with pytest.raises(
        CheckpointError, match=r"w\.0\.0: \[64, 1\] bytes were made where \[63, 1\]"
    ):
        written(index, edits(index, lambda data: [data[0], b"x"]), tmp_path / "out")


def test_a_source_that_became_shorter_is_said(tmp_path: Path) -> None:
    index = source(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(CheckpointError, match="ends early"):
        written(index, edits(index), tmp_path / "out")


def test_pieces_may_lie_in_other_files_and_may_be_changed(tmp_path: Path) -> None:
    index = source(tmp_path / "m", 2)

    def make(data: Any) -> list[bytes]:
        first, second = data
        first[0] = second[0]
        return [bytes(first)]

    pieces = (Piece("w.1", "U8", (8,), 8, 16), Piece(f"w.{COUNT - 1}", "U8", (3,), 5, 8))
    info = TensorInfo("U8", (8,), 8)
    edit = TensorEdit(
        source="w.1", target="x", info=info, making=Making(pieces=pieces, make=make, sizes=(8,))
    )
    out = written(index, [edit], tmp_path / "out")
    one, other = noise(1, SIZE), noise(COUNT - 1, SIZE)
    assert read(out) == {"x": other[5:6] + one[9:16]}
    assert (tmp_path / "m" / "model-00001-of-00002.safetensors").read_bytes().count(one) == 1

"""Files of which only headers and some tensors are known, against the whole files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_safetensors import folder, noise, pack

from moeprune.checkpoint import outline
from moeprune.checkpoint.header import read_header
from moeprune.checkpoint.index import CheckpointIndex, fingerprint
from moeprune.checkpoint.outline import Outlines
from moeprune.errors import CheckpointError


class Reads:
    """Hands out byte ranges of the files of a folder, and remembers which."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.ranges: list[tuple[str, int, int]] = []

    def __call__(self, file: str, start: int, end: int) -> bytes:
        with self._lock:
            self.ranges.append((file, start, end))
        data = (self._path / file).read_bytes()
        assert 0 <= start < end <= len(data)
        return data[start:end]

    @property
    def bytes(self) -> int:
        return sum(end - start for _, start, end in self.ranges)


def row(number: int, size: int) -> tuple[str, str, tuple[int, ...], bytes]:
    return f"t{number}", "U8", (size,), noise(number + 1, size)


@given(
    sizes=st.lists(st.integers(0, 200_000), min_size=1, max_size=9),
    cut=st.integers(0, 9),
    wanted=st.sets(st.integers(0, 8)),
    first=st.sampled_from([8, 9, 64, 1 << 17]),
    gap=st.sampled_from([0, 10_000, 64 << 10]),
)
def test_it_serves_as_the_whole_file(
    sizes: list[int],
    cut: int,
    wanted: set[int],
    first: int,
    gap: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("outline")
    rows = [row(number, size) for number, size in enumerate([*sizes, 7])]
    shards = {"a.safetensors": rows[:cut], "b.safetensors": rows[cut:]}
    source = folder(path / "whole", {file: table for file, table in shards.items() if table})
    (path / "mine").mkdir()
    for name in ("config.json", "model.safetensors.index.json"):
        (path / "mine" / name).write_bytes((source / name).read_bytes())
    reads = Reads(source)
    names = [f"t{number}" for number in sorted(wanted) if number < len(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outline, "FIRST_BYTES", first)
        patch.setattr(outline, "_GAP", gap)
        outlines = Outlines(path / "mine", reads)
        whole = CheckpointIndex.open(source)
        for file in whole.files:
            outlines.add(file, size=(source / file).stat().st_size)
        index = CheckpointIndex.open(path / "mine")
        assert (index.entries, index.metadata) == (whole.entries, whole.metadata)
        outlines.fill(index, names)
    assert fingerprint(index, names) == fingerprint(whole, names)
    headers = sum(min(e.start for e in whole.entries.values() if e.file == f) for f in whole.files)
    asked = sum(whole.entries[name].info.nbytes for name in names)
    assert reads.bytes <= headers + len(whole.files) * first + asked + gap * len(names)
    for file in whole.files:
        data = (source / file).read_bytes()
        assert outlines.agrees(file, source / file)
        known = bytearray(len(data))
        for at in (r for r in reads.ranges if r[0] == file):
            known[at[1] : at[2]] = b"\1" * (at[2] - at[1])
        expected = bytes(byte if seen else 0 for byte, seen in zip(data, known, strict=True))
        assert (path / "mine" / file).read_bytes() == expected
        other = path / "other"
        for position in {0, 8, len(data) // 2, len(data) - 1}:
            changed = bytearray(data)
            changed[position] ^= 1
            other.write_bytes(changed)
            assert outlines.agrees(file, other) == (not known[position])
        other.write_bytes(data + b"x")
        assert not outlines.agrees(file, other)


@pytest.mark.parametrize(
    ("head", "size", "message"),
    [
        ((2**60).to_bytes(8, "little"), 5_000, "1152921504606846976"),
        ((2**64 - 1).to_bytes(8, "little"), 5_000, "18446744073709551615"),
        ((200_000_000).to_bytes(8, "little"), 1 << 40, "200000000"),
        (b"\x05", 3, "3 bytes"),
        (b"", 0, "0 bytes"),
        (b"version https://git-lfs", 120, "Git LFS pointer"),
    ],
)
def test_hostile_headers_are_neither_read_nor_believed(
    head: bytes, size: int, message: str, tmp_path: Path
) -> None:
    asked = []

    def read(file: str, start: int, end: int) -> bytes:
        asked.append(end - start)
        return head[start:end].ljust(end - start, b"\0")

    Outlines(tmp_path, read).add("model.safetensors", size=size)
    assert sum(asked) <= min(size, outline.FIRST_BYTES)
    with pytest.raises(CheckpointError, match=message):
        read_header(tmp_path / "model.safetensors")
    taken = (tmp_path / "model.safetensors").stat()
    assert taken.st_size == size and taken.st_blocks * 512 <= 1 << 20


def test_a_size_that_no_disk_has_is_one_line(tmp_path: Path) -> None:
    header = pack({}, b"")
    with pytest.raises(CheckpointError, match="cannot be outlined at 4,611,686,018,427,387,904"):
        Outlines(tmp_path, lambda *_: header).add("model.safetensors", size=2**62)


def test_the_first_failure_ends_the_others() -> None:
    ran: list[int] = []

    def job(number: int) -> Callable[[], None]:
        def run() -> None:
            ran.append(number)
            if number == 3:
                raise CheckpointError("third")
            gate.wait(0.05)

        return run

    gate = threading.Event()
    with pytest.raises(CheckpointError, match="third"):
        outline.each([job(number) for number in range(1000)])
    assert 3 in ran and len(ran) < 500

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_safetensors import noise, pack, write
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from moeprune.checkpoint.header import DTYPE_BITS, read_header
from moeprune.errors import CheckpointError, MoePruneError


def library_accepts(path: Path) -> dict[str, tuple[str, tuple[int, ...]]] | None:
    """What safetensors itself reads: name -> (dtype, shape), or None if it refuses the file."""
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
    except SafetensorError:
        return None


def test_equals_the_library(tmp_path: Path) -> None:
    arrays = {
        "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(5, dtype=np.int64),
        "scalar": np.array(7, dtype=np.uint8),
        "empty": np.zeros((2, 0), dtype=np.float16),
        "größe 你好": np.ones((1, 1, 3), dtype=np.bool_),
    }
    path = tmp_path / "x.safetensors"
    save_file(arrays, path, metadata={"format": "pt", "ü": "é"})
    header = read_header(path)
    assert header.metadata == {"format": "pt", "ü": "é"}
    assert set(header.entries) == set(arrays)
    raw = path.read_bytes()
    for name, array in arrays.items():
        entry = header.entries[name]
        assert entry.info.shape == array.shape
        assert raw[entry.start : entry.end] == array.tobytes()
    starts = [entry.start for entry in header.entries.values()]
    assert starts == sorted(starts)


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_every_type_of_the_library(dtype: str, tmp_path: Path) -> None:
    size = 8 * DTYPE_BITS[dtype] // 8
    path = write(tmp_path / "x.safetensors", [("t", dtype, [2, 4], bytes(size))])
    assert library_accepts(path) == {"t": (dtype, (2, 4))}
    assert read_header(path).entries["t"].info.nbytes == size
    write(path, [("t", dtype, [2, 4], bytes(size + 1))])
    assert library_accepts(path) is None
    with pytest.raises(CheckpointError, match="needs"):
        read_header(path)


def entry(**changes: object) -> dict[str, object]:
    return {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} | changes


DATA = b"1234"
BROKEN = {
    "empty file": (b"", "cannot hold the header"),
    "seven bytes": (b"\1" * 7, "cannot hold the header"),
    "header beyond the file": ((1000).to_bytes(8, "little") + b"{}", "cannot hold the header"),
    "huge header length": (b"\xff" * 8 + b"{}", "cannot hold the header"),
    "not JSON": (pack(b"{oops", DATA), "not valid JSON"),
    "not UTF-8": (pack(b'{"\xff":1}', DATA), "not valid JSON"),
    "deep nesting": (pack(b"[" * 200_000, DATA), "not valid JSON"),
    "a list": (pack([1], DATA), "not a JSON object"),
    "no dtype": (pack({"t": {"shape": [4], "data_offsets": [0, 4]}}, DATA), "lacks"),
    "an entry that is no object": (pack({"t": 3}, DATA), "lacks"),
    "unknown type": (pack({"t": entry(dtype="I3")}, DATA), "does not know"),
    "type not text": (pack({"t": entry(dtype=["U8"])}, DATA), "does not know"),
    "negative size": (pack({"t": entry(shape=[-4])}, DATA), "has shape"),
    "size not whole": (pack({"t": entry(shape=[4.0])}, DATA), "has shape"),
    "true is no size": (pack({"t": entry(shape=[True, 4])}, DATA), "has shape"),
    "three offsets": (pack({"t": entry(data_offsets=[0, 2, 4])}, DATA), "has shape"),
    "offsets swapped": (pack({"t": entry(data_offsets=[4, 0])}, DATA), "needs 4 bytes"),
    "shape too large": (pack({"t": entry(shape=[5])}, DATA), "needs 5 bytes, it has 4"),
    "a dimension beyond 64 bits": (pack({"t": entry(shape=[2**64])}, DATA), "has shape"),
    "numbers too long to print": (pack({"t": entry(shape=[10**4000] * 99)}, DATA), "has shape"),
    "a million dimensions": (pack({"t": entry(shape=[2] * 1_000_000)}, DATA), "has shape"),
    "half a byte": (pack({"t": entry(dtype="F4", shape=[7])}, DATA), "whole bytes"),
    "beyond the data": (pack({"t": entry(shape=[9], data_offsets=[0, 9])}, DATA), "describes"),
    "bytes left over": (pack({"t": entry()}, DATA + b"5"), "describes"),
    "a hole": (pack({"t": entry(shape=[3], data_offsets=[1, 4])}, DATA), "hole"),
    "overlap": (
        pack({"t": entry(), "u": entry(shape=[3], data_offsets=[1, 4])}, DATA),
        "overlaps",
    ),
    "metadata not texts": (pack({"__metadata__": {"a": 1}, "t": entry()}, DATA), "__metadata__"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    content, reason = BROKEN[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert library_accepts(path) is None
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_header(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry())
    path = tmp_path / "x.safetensors"
    path.write_bytes(pack(f'{{"t": {one}, "t": {one}}}'.encode(), DATA))
    with pytest.raises(CheckpointError, match="'t' occurs twice"):
        read_header(path)


def test_a_git_lfs_pointer_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        read_header(path)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read_header(tmp_path / "absent.safetensors")


GOOD = pack(
    {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "F4", "shape": [4], "data_offsets": [12, 14]},
    },
    noise(0, 14),
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=3),
    st.integers(0, len(GOOD) + 3),
)
def test_never_accepts_what_the_library_refuses(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]], length: int
) -> None:
    content = bytearray(GOOD)
    for position, value in edits:
        content[position] = value
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(bytes(content[:length]) + bytes(max(0, length - len(content))))
    known = library_accepts(path)
    try:
        header = read_header(path)
    except MoePruneError:
        return
    assert known == {n: (e.info.dtype, e.info.shape) for n, e in header.entries.items()}


def test_fuzz_start_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(GOOD)
    assert library_accepts(path) == {"a": ("BF16", (2, 3)), "b": ("F4", (4,))}
    assert list(read_header(path).entries) == ["a", "b"]

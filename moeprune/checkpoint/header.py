"""One safetensors file by its header: names, types, shapes and byte ranges, every claim checked.

The format: 8 bytes little-endian header length, a JSON object, then the data. Tensors tile the
data without hole or overlap.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.core.layout import TensorInfo
from moeprune.errors import CheckpointError

# Bits of one value, for every type of the format (safetensors 0.8).
DTYPE_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

LENGTH_BYTES = 8
_LFS_POINTER = b"version https://"
MAX_HEADER = 100_000_000  # the limit of the safetensors library
_MAX_DIMENSIONS = 64


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One stored tensor and where its bytes lie.

    Attributes:
        info: type, shape and size.
        file: name of the shard, inside the checkpoint folder.
        start: first byte, counted from the start of the file.
        end: byte after the last.
    """

    info: TensorInfo
    file: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one safetensors file.

    Attributes:
        entries: name -> entry, in the order of the data.
        metadata: ``__metadata__``, empty where the file has none.
    """

    entries: dict[str, TensorEntry]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Read and check the header of ``path``; no tensor data is read.

    Raises:
        CheckpointError: the file cannot be read, is cut short, or its header contradicts itself.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(LENGTH_BYTES)
            if head == _LFS_POINTER[:LENGTH_BYTES] and file.read(8) == _LFS_POINTER[8:]:
                raise CheckpointError(
                    f"{path} is a Git LFS pointer, not the weights. Run git lfs pull in its folder."
                )
            length = int.from_bytes(head, "little")
            if len(head) < LENGTH_BYTES or length > size - LENGTH_BYTES or length > MAX_HEADER:
                raise _broken(
                    path, f"its {size} bytes cannot hold the header of {length} bytes it states"
                )
            text = file.read(length)
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    body = _parse(path, text)
    metadata = body.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _broken(path, "__metadata__ is not a table of texts")
    data_start = LENGTH_BYTES + length
    entries = [(name, _entry(path, name, body[name], data_start)) for name in body]
    entries.sort(key=lambda item: (item[1].start, item[1].end, item[0]))
    _check_tiling(path, entries, data_start, size)
    return Header(dict(entries), metadata)


def nbytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of a known type.

    Raises:
        ValueError: its bits do not fill whole bytes.
    """
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8:
        raise ValueError(f"{dtype} {list(shape)} does not fill whole bytes")
    return bits // 8


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as problem:  # UnicodeDecodeError, JSONDecodeError, ours
        reason = str(problem).partition("\n")[0]
        raise _broken(path, f"its header is not valid JSON: {reason}") from None
    if not isinstance(body, dict):
        raise _broken(path, "its header is not a JSON object")
    return body


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"{twice!r} occurs twice")
    return table


def _entry(path: Path, name: str, item: Any, data_start: int) -> TensorEntry:
    if not isinstance(item, dict) or not {"dtype", "shape", "data_offsets"} <= item.keys():
        raise _broken(path, f"tensor {name!r} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(
            f"{path}: tensor {name!r} has dtype {dtype!r}, which moeprune does not know. "
            "Convert the checkpoint to a type of safetensors 0.8."
        )
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        stated = f"shape {str(shape)[:99]} and data_offsets {str(offsets)[:99]}"
        raise _broken(path, f"tensor {name!r} has {stated}")
    start, end = offsets
    try:
        expected = nbytes_of(dtype, tuple(shape))
    except ValueError as problem:
        raise _broken(path, f"tensor {name!r}: {problem}") from None
    if end - start != expected:
        raise _broken(
            path, f"tensor {name!r}: {dtype} {shape} needs {expected} bytes, it has {end - start}"
        )
    info = TensorInfo(dtype, tuple(shape), expected)
    return TensorEntry(info, path.name, data_start + start, data_start + end)


def _naturals(value: Any) -> bool:
    """A list that could be a shape or offsets: the format's numbers are unsigned 64-bit."""
    return (
        isinstance(value, list)
        and len(value) <= _MAX_DIMENSIONS
        and all(type(item) is int and 0 <= item < 2**64 for item in value)
    )


def _check_tiling(
    path: Path, entries: list[tuple[str, TensorEntry]], data_start: int, size: int
) -> None:
    position = data_start
    for name, entry in entries:
        if entry.start != position:
            what = "overlaps the one before it" if entry.start < position else "follows a hole"
            raise _broken(path, f"tensor {name!r} at byte {entry.start} {what}")
        position = entry.end
    if position != size:
        raise _broken(path, f"it has {size} bytes, its header describes {position}")


def _broken(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is truncated or corrupt: {reason}. Download or copy the file again."
    )

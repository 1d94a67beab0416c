"""What padding must look like in an export, apart from the code that writes it."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Protocol

from moeprune.checkpoint.index import CheckpointIndex, TensorEntry
from moeprune.core.layout import ExpertTensor, TensorInfo

PADDING = -1  # stands for a position that the source does not have
_CHUNK = 8 << 20
# −1e9, and the lowest number of a type that ends before it.
_LOW = {
    "F64": struct.pack("<d", -1e9),
    "F32": struct.pack("<f", -1e9),
    "BF16": b"\x6e\xce",
    "F16": struct.pack("<e", -65504.0),
}


class Reads(Protocol):
    """Reads byte ranges of a checkpoint."""

    def read(self, file: str, start: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``start`` of a file."""


def empty_row(name: str, entry: TensorEntry, rule: ExpertTensor) -> bytes:
    """The bytes of one padded position: zeros, or the low number of a router's bias."""
    axis = rule.axis or 0
    size = entry.info.nbytes // max(1, math.prod(entry.info.shape[: axis + 1]))
    last = name.rpartition(".")[2]
    if rule.role == "router" and "bias" in last and entry.info.dtype in _LOW:
        low = _LOW[entry.info.dtype]
        return low * (size // len(low))
    return bytes(size)


def empty_problems(
    theirs: Reads, export: CheckpointIndex, name: str, like: TensorInfo
) -> Iterator[str]:
    """What is wrong with the tensor of an expert that pads a layer."""
    entry = export.entries.get(name)
    if entry is None:
        yield f"{name} is missing: its layer is not filled up to the widest one"
        return
    if (entry.info.dtype, entry.info.shape) != (like.dtype, like.shape):
        yield f"{name} pads a layer, but is {entry.info.dtype} {list(entry.info.shape)}"
        return
    for start in range(entry.start, entry.end, _CHUNK):
        size = min(_CHUNK, entry.end - start)
        if theirs.read(entry.file, start, size) != bytes(size):
            yield f"{name} pads a layer, but is not zero"
            return

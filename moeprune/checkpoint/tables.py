"""Routing tables of a checkpoint: read as numbers, written with the experts' new numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from moeprune.checkpoint.copying import Copier
from moeprune.checkpoint.index import TensorEntry
from moeprune.core.hash_table import Table, renumbered
from moeprune.core.layout import TensorInfo
from moeprune.errors import CheckpointError

_DTYPES = {"I64": "<i8", "I32": "<i4"}


def parse_table(data: bytes, dtype: str, shape: Sequence[int]) -> Table:
    """The (V, K) int64 numbers of a stored table."""
    return np.frombuffer(data, _DTYPES[dtype]).reshape(shape).astype(np.int64)


def write_table(copier: Copier, source: BinaryIO, entry: TensorEntry, keep: Sequence[int]) -> None:
    """Append a table in which every removed expert has a kept one in its place.

    Raises:
        CheckpointError: the source has become shorter than its header said.
    """
    source.seek(entry.start)
    data = bytearray()
    while len(data) < entry.info.nbytes:
        piece = source.read(entry.info.nbytes - len(data))
        if not piece:
            raise CheckpointError(
                f"{entry.file} ends early: it changed while it was read. Copy the checkpoint again."
            )
        data += piece
    table_VK = renumbered(parse_table(bytes(data), entry.info.dtype, entry.info.shape), keep)
    copier.write_new(table_VK.astype(_DTYPES[entry.info.dtype]).tobytes())


def table_problem(
    mine: bytes, theirs: bytes, info: TensorInfo, other: TensorInfo, keep: Sequence[int]
) -> str:
    """What is wrong with an exported table; empty where nothing is.

    Entries of kept experts have their new numbers, all others some number that exists, and a token
    runs as many different experts as before, where that many are there.
    """
    if (info.shape, len(mine)) != (other.shape, len(theirs)):
        return f"has shape {list(other.shape)}, expected {list(info.shape)}"
    old_VK = parse_table(mine, info.dtype, info.shape)
    new_VK = parse_table(theirs, other.dtype, other.shape)
    if new_VK.size and not 0 <= new_VK.min() <= new_VK.max() < len(keep):
        return f"names expert {new_VK.max()} of {len(keep)}"
    for number, expert in enumerate(keep):
        if (new_VK[old_VK == expert] != number).any():
            return f"names another expert than {number} where the source names {expert}"
    fewer = [
        row
        for row, (old_K, new_K) in enumerate(zip(old_VK.tolist(), new_VK.tolist(), strict=True))
        if len(set(new_K)) < len(set(old_K))
    ]
    return f"runs an expert twice for token {fewer[0]}" if fewer else ""

"""One tensor of an export against the one that it was cut from, byte by byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from moeprune.checkpoint.audit_padding import PADDING, empty_row
from moeprune.checkpoint.audit_reader import Shards
from moeprune.checkpoint.audit_scaling import is_product
from moeprune.checkpoint.index import TensorEntry
from moeprune.checkpoint.tables import table_problem
from moeprune.core.layout import ExpertTensor

_CHUNK = 8 << 20


def tensor_problem(
    mine: Shards,
    theirs: Shards,
    name: str,
    entry: TensorEntry,
    other: TensorEntry,
    rule: ExpertTensor | None,
    ids: Sequence[int],
    *,
    pads: int,
    factor: float = 1.0,
) -> str:
    """What is wrong with one tensor of an export; empty where nothing is.

    Args:
        mine: the source.
        theirs: the export.
        name: of the tensor in the source.
        entry: of the tensor in the source.
        other: of the tensor in the export.
        rule: how it depends on the experts; None: it must be the same.
        ids: the experts of its layer that stay.
        pads: positions of padding after them.
        factor: what its values are multiplied by.
    """
    if entry.info.dtype != other.info.dtype:
        return f"is {other.info.dtype}, the source has {entry.info.dtype}"
    shape = list(entry.info.shape)
    if rule is not None and rule.role == "table":
        return table_problem(
            mine.read(entry.file, entry.start, entry.info.nbytes),
            theirs.read(other.file, other.start, other.info.nbytes),
            entry.info,
            other.info,
            ids,
        )
    ranges: Iterator[tuple[int, int] | None] = iter([(entry.start, entry.end)])
    empty = b""
    if rule is not None and rule.axis is not None:
        length = shape[rule.axis]
        kept = [position for e in ids for position in range(e * rule.block, (e + 1) * rule.block)]
        kept += [PADDING] * (pads * rule.block)
        kept += range(length - rule.extra, length)
        empty = empty_row(name, entry, rule)
        ranges = _row_ranges(entry, axis=rule.axis, kept=kept)
        shape[rule.axis] = len(kept)
    if tuple(shape) != other.info.shape:
        return f"has shape {list(other.info.shape)}, expected {shape}"
    at = other.start
    for found in ranges:
        if found is None:
            if theirs.read(other.file, at, len(empty)) != empty:
                return f"is not padding where it must be (byte {at - other.start})"
            at += len(empty)
            continue
        start, end = found
        while start < end:
            size = min(end - start, _CHUNK)
            before, after = mine.read(entry.file, start, size), theirs.read(other.file, at, size)
            if factor != 1.0 and not is_product(before, after, entry.info.dtype, factor):
                return (
                    f"values are not the source's times {factor:.9g} (from byte "
                    f"{at - other.start} on)"
                )
            if factor == 1.0 and before != after:
                return f"bytes differ from the source's (from byte {at - other.start} on)"
            start, at = start + size, at + size
    return "" if at == other.end else "holds more bytes than expected"


def _row_ranges(
    entry: TensorEntry, *, axis: int, kept: Sequence[int]
) -> Iterator[tuple[int, int] | None]:
    """Byte ranges of the kept positions on ``axis``, in the order of the sliced tensor.

    None stands for a position that the source does not have.
    """
    shape = entry.info.shape
    if not entry.info.nbytes:
        return
    outer = math.prod(shape[:axis])
    step = entry.info.nbytes // outer
    row = step // shape[axis]
    for index in range(outer):
        base = entry.start + index * step
        for position in kept:
            here = base + position * row
            yield None if position == PADDING else (here, here + row)

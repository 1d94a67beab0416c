"""Multiply stored values by a constant, in the type that they are stored in.

The product is rounded once, to the nearest value of the type, of two equally near ones to the even
one. That holds to the last bit because the factor is a float32 number: its product with a value of
at most 24 significant bits is exact in float64, and a product in float32 is rounded by the machine.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from moeprune.checkpoint.copying import Copier, read_exactly
from moeprune.checkpoint.edits import TensorEdit, row_runs
from moeprune.checkpoint.header import TensorEntry
from moeprune.checkpoint.making import Bytes
from moeprune.checkpoint.padding import pieces_of
from moeprune.errors import CheckpointError, UnsupportedModelError

SCALABLE = ("BF16", "F16", "F32", "F64")
_CHUNK_BYTES = 4 << 20  # a multiple of every type's size

_NUMPY = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def as_factor(gain: float) -> float:
    """The float32 number nearest to a gain: what values are multiplied by.

    Raises:
        UnsupportedModelError: it is no positive finite number.
    """
    with np.errstate(over="ignore", under="ignore"):
        factor = float(np.float32(gain))
    if not 0 < factor < math.inf:
        raise UnsupportedModelError(f"weights cannot be multiplied by {gain!r}.")
    return factor


def scaled(data: Bytes, dtype: str, factor: float) -> bytes:
    """Stored values times ``factor``.

    Args:
        data: values of one type.
        dtype: one of ``SCALABLE``.
        factor: from :func:`as_factor`.
    """
    if dtype in ("BF16", "F16"):
        return bytes(_products(dtype, factor)[np.frombuffer(data, "<u2")].data.cast("B"))
    values = np.frombuffer(data, _NUMPY[dtype])
    with np.errstate(over="ignore", invalid="ignore"):
        products = (values * values.dtype.type(factor)).astype(values.dtype)
    return bytes(products.data.cast("B"))


def scaled_edit(data: Bytes, edit: TensorEdit) -> bytes:
    """What an edit makes of stored values of its tensor: these times its factor.

    Raises:
        CheckpointError: a value leaves the range of its type.
    """
    made = scaled(data, edit.info.dtype, edit.factor)
    _check_finite(data, made, edit)
    return made


def write_scaled(copier: Copier, source: BinaryIO, entry: TensorEntry, edit: TensorEdit) -> None:
    """Append a tensor whose values are multiplied, a chunk at a time.

    Raises:
        CheckpointError: the source has become shorter than its header said, or a value leaves the
            range of its type.
    """
    for piece in _pieces(edit, entry):
        if not isinstance(piece, tuple):
            copier.write_new(piece)
            continue
        start, end = entry.start + piece[0], entry.start + piece[1]
        source.seek(start)
        while start < end:
            copier.on_read(start)
            data = read_exactly(source, min(end - start, _CHUNK_BYTES))
            made = scaled_edit(data, edit)
            copier.write_new(made)
            start += len(data)


def _pieces(edit: TensorEdit, entry: TensorEntry) -> Iterator[tuple[int, int] | bytes | memoryview]:
    if edit.pad:
        yield from pieces_of(edit, entry.info)
    else:
        yield from row_runs(edit, entry.info)


@functools.lru_cache(maxsize=4)
def _products(dtype: str, factor: float) -> npt.NDArray[np.uint16]:
    """The product of every 16-bit code: looking it up is faster than multiplying."""
    codes = np.arange(1 << 16, dtype="<u2")
    if dtype == "BF16":
        return _scaled_bf16(codes, factor)
    with np.errstate(over="ignore", invalid="ignore"):
        products = codes.view("<f2").astype(np.float64) * factor
        return products.astype("<f2").view("<u2")


def _scaled_bf16(codes: npt.NDArray[np.uint16], factor: float) -> npt.NDArray[np.uint16]:
    """A bfloat16 is the upper half of a float32, which lacks room for the product alone."""
    values = (codes.astype("<u4") << np.uint32(16)).view("<f4")
    with np.errstate(over="ignore", invalid="ignore"):
        near = values * np.float32(factor)
    bits = near.view("<u4")
    # Where rounding to float32 ended half way between two bfloat16 numbers, the product itself says
    # on which side it lies.
    (half,) = np.nonzero((bits & np.uint32(0xFFFF)) == 0x8000)
    if half.size:
        exact = np.abs(values[half].astype(np.float64) * factor)
        at = np.abs(near[half].astype(np.float64))
        bits[half] += (exact > at).astype("<u4") - (exact < at).astype("<u4")
    even = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype("<u2")


def _check_finite(before: Bytes, after: Bytes, edit: TensorEdit) -> None:
    """A weight that was a number stays one."""
    if edit.factor <= 1:
        return
    if _infinite(after, edit.info.dtype) > _infinite(before, edit.info.dtype):
        raise CheckpointError(
            f"tensor {edit.source!r} times {edit.factor:g} leaves the range of {edit.info.dtype}. "
            "Convert the checkpoint to BF16 or F32."
        )


def _infinite(data: Bytes, dtype: str) -> int:
    if dtype == "BF16":
        return int(np.count_nonzero(np.frombuffer(data, "<u2") & np.uint16(0x7FFF) == 0x7F80))
    return int(np.count_nonzero(np.isinf(np.frombuffer(data, _NUMPY[dtype]))))

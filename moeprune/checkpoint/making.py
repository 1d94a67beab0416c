"""Tensors that are computed from stored ones: which bytes they need, and what becomes of them.

One making reads a few pieces of stored tensors (an expert's weight, and its scale where it has one)
and gives the bytes of several new tensors (packed numbers, scales), which are written one after
another. It is computed once, and memory holds what it needs and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Bytes = bytes | bytearray | memoryview
Make = Callable[[Sequence[Bytes]], Sequence[Bytes]]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes of one stored tensor, which has a shape of its own.

    Attributes:
        source: name of the tensor.
        dtype: as safetensors spells it.
        shape: of the piece.
        start, end: bytes, counted from the tensor's first.
    """

    source: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Making:
    """New tensors from pieces of stored ones. Compared by identity: its edits share one object.

    Attributes:
        pieces: what is read. The edits of this making name the tensor of the first as their source;
            others may lie in another file, unless the source's files come one by one.
        make: from the bytes of the pieces, which it may change, to the bytes of every new tensor,
            in order. Called from several threads.
        sizes: bytes of every new tensor.
        values: parameters that the new tensors stand for together.
    """

    pieces: tuple[Piece, ...]
    make: Make
    sizes: tuple[int, ...]
    values: int = 0

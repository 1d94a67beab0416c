"""Tell the system what will be read next, so that the disk never waits for us nor reads in vain.

The kernel's own guess reads on after every range, megabytes on some disks, into experts that leave.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

_PIECE = 4 << 20
_AHEAD = 64 << 20  # bytes of the file past the position
_KNOWN = hasattr(os, "posix_fadvise")


class ReadAhead:
    """Announces the ranges of one file as reading comes near them."""

    def __init__(self, source: BinaryIO, ranges: Iterable[tuple[int, int]]) -> None:
        self._handle = source.fileno()
        self._pieces = _pieces(ranges)
        self._next = next(self._pieces, None) if _KNOWN else None
        if _KNOWN:
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def reached(self, position: int) -> None:
        """Announce what lies a little past ``position``; positions only grow."""
        while self._next is not None and self._next[0] < position + _AHEAD:
            start, end = self._next
            if end > position:
                os.posix_fadvise(self._handle, start, end - start, os.POSIX_FADV_WILLNEED)
            self._next = next(self._pieces, None)


def _pieces(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, end in ranges:
        for at in range(start, end, _PIECE):
            yield at, min(at + _PIECE, end)

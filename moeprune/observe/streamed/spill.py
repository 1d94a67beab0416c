"""A file without a name, for what does not fit the memory.

It is gone with the process, however that ends. It is written to, not mapped: where a disk is full,
a write says so, and a map ends the process.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from moeprune.errors import OutputError


class Spill:
    """Pieces of bytes in a file; the place of one that was taken is used again.

    Args:
        file: to write to and to read.
        folder: it lies in, for messages.
    """

    def __init__(self, file: BinaryIO, folder: Path) -> None:
        self._file, self._folder = file, folder
        self._end = 0
        self._free: dict[int, list[int]] = defaultdict(list)

    def put(self, piece: memoryview) -> int:
        """Write a piece; where it lies.

        Raises:
            OutputError: the disk does not hold it.
        """
        free = self._free[piece.nbytes]
        at = free.pop() if free else self._end
        try:
            self._file.seek(at)
            rest = piece
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as problem:
            raise OutputError(
                f"{self._folder} cannot hold what waits for its layer: "
                f"{problem.strerror or problem}. Make room there, or give more --memory."
            ) from problem
        self._end = max(self._end, at + piece.nbytes)
        return at

    def take(self, at: int, room: memoryview) -> None:
        """Read a piece back; its place is free then.

        Raises:
            OutputError: it cannot be read.
        """
        try:
            self._file.seek(at)
            rest = room
            while rest and (count := self._file.readinto(rest)):  # type: ignore[attr-defined]
                rest = rest[count:]
        except OSError as problem:
            raise OutputError(
                f"what was written to {self._folder} cannot be read: {problem.strerror or problem}."
                " Start the same command again."
            ) from problem
        self.drop(at, room.nbytes)

    def drop(self, at: int, nbytes: int) -> None:
        """Nobody asks for a piece any more."""
        self._free[nbytes].append(at)


@contextlib.contextmanager
def spill(folder: Path) -> Iterator[Spill]:
    """A file in ``folder``.

    Raises:
        OutputError: there can be none.
    """
    try:
        file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
    except OSError as problem:
        raise OutputError(
            f"no file can be made in {folder} for what waits for its layer: "
            f"{problem.strerror or problem}. Name an output elsewhere, or give more --memory."
        ) from problem
    with file:
        yield Spill(file, folder)

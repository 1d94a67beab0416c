"""Byte ranges of a checkpoint's shards, read with one open file at a time."""

from __future__ import annotations

from contextlib import ExitStack
from typing import BinaryIO

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.errors import CheckpointError


class Shards:
    """Reads byte ranges of a checkpoint's shards; one file is open at a time.

    Tensors come in the order of the disk, so a file is opened about once; a large model has more
    shards than some systems let a process open.
    """

    def __init__(self, index: CheckpointIndex, stack: ExitStack) -> None:
        self._path = index.path
        self._name = ""
        self._handle: BinaryIO | None = None
        stack.callback(self._close)

    def read(self, file: str, start: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``start`` of a shard.

        Raises:
            CheckpointError: the file cannot be read.
        """
        try:
            if self._handle is None or self._name != file:
                self._close()
                self._handle, self._name = (self._path / file).open("rb"), file
            self._handle.seek(start)
            return self._handle.read(size)
        except OSError as problem:
            raise CheckpointError(
                f"{self._path / file} cannot be read: {problem.strerror or problem}."
            ) from problem

    def _close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None

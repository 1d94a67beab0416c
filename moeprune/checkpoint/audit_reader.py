"""Byte ranges of a checkpoint's shards, read with one open file at a time."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from moeprune.checkpoint.copying import OnBytes
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.sources import PassingFiles
from moeprune.errors import CheckpointError


class Shards:
    """Reads byte ranges of a checkpoint's shards; one file is open at a time.

    Tensors come in the order of the disk, so a file is opened about once; a large model has more
    shards than some systems let a process open.
    """

    def __init__(
        self,
        index: CheckpointIndex,
        stack: ExitStack,
        passing: PassingFiles | None = None,
        on_bytes: OnBytes = lambda _: None,
    ) -> None:
        """Closed at the end of ``stack``.

        Args:
            index: the checkpoint.
            stack: what ends with the reading.
            passing: where its files come from, if they do not lie in its folder.
            on_bytes: told the size of each file that was fetched.
        """
        self._path = index.path
        self._passing = passing
        self._on_bytes = on_bytes
        self._name = ""
        self._handle: BinaryIO | None = None
        stack.callback(self._close)

    def read(self, file: str, start: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``start`` of a shard.

        Raises:
            CheckpointError: the file cannot be read.
        """
        if self._handle is None or self._name != file:
            self._close()
            path = self._whole(file)
        try:
            if self._handle is None:
                self._handle, self._name = path.open("rb"), file
            self._handle.seek(start)
            return self._handle.read(size)
        except OSError as problem:
            raise CheckpointError(
                f"{self._path / file} cannot be read: {problem.strerror or problem}."
            ) from problem

    def _whole(self, file: str) -> Path:
        if self._passing is None:
            return self._path / file
        path = self._passing.fetch(file)
        self._on_bytes(self._passing.sizes.get(file, 0))
        return path

    def _close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
            if self._passing is not None:
                self._passing.drop(self._name)

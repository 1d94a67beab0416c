"""Weight files of a source that come one after another and go again: few lie on the disk."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from moeprune.checkpoint.copying import OnBytes
from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.shards import Shard
from moeprune.errors import UnsupportedModelError


class PassingFiles(Protocol):
    """Gives an export the weight files of its source when it comes to them."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """File -> bytes on the disk while it is here; files that always lie here are not in it."""

    def fetch(self, file: str) -> Path:
        """Bring the file here, whole; returns its path."""

    def drop(self, file: str) -> None:
        """It will not be read again."""


def files_of(index: CheckpointIndex, shard: Shard) -> list[str]:
    """The source files that a weight file is made from, in order."""
    return list(dict.fromkeys(index.entries[edit.source].file for edit in shard.edits))


def passing_sizes(
    index: CheckpointIndex, shards: Iterable[Shard], passing: PassingFiles | None
) -> dict[str, int]:
    """File -> bytes, of the files that must be brought here to write ``shards``."""
    if passing is None:
        return {}
    needed = dict.fromkeys(file for shard in shards for file in files_of(index, shard))
    return {file: passing.sizes[file] for file in needed if file in passing.sizes}


def check_together(
    index: CheckpointIndex, edits: Iterable[TensorEdit], passing: PassingFiles | None
) -> None:
    """Check that everything that a tensor is made from is here at the same time.

    Raises:
        UnsupportedModelError: it lies in several files that come one by one.
    """
    for edit in edits if passing is not None else ():
        if edit.making is None or edit.part:
            continue
        file = index.entries[edit.source].file
        for piece in edit.making.pieces:
            other = index.entries[piece.source].file
            if other != file and passing is not None and other in passing.sizes:
                raise UnsupportedModelError(
                    f"{edit.source!r} lies in {file} and {piece.source!r}, which its numbers need, "
                    f"in {other}; --stream has one weight file here at a time. Leave --stream out."
                )


class Lender:
    """Lends source files to the shards, which are written one after another.

    Tensors lie in the shards in the order of the source's files. So a file that was used for the
    last time is dropped before the next is fetched, and at most one lies here at a time, also where
    an output file begins in the middle of it.
    """

    def __init__(
        self,
        index: CheckpointIndex,
        shards: Iterable[Shard],
        passing: PassingFiles | None,
        on_bytes: OnBytes,
    ) -> None:
        self._folder = index.path
        self._passing = passing
        self._on_bytes = on_bytes
        self._left = Counter(file for shard in shards for file in files_of(index, shard))
        self._here: dict[str, Path] = {}

    @contextlib.contextmanager
    def lend(self, file: str) -> Iterator[Path]:
        """The path of a source file, for one of its uses."""
        if self._passing is None:
            yield self._folder / file
            return
        if file not in self._here:
            self._here[file] = self._passing.fetch(file)
            self._on_bytes(self._passing.sizes.get(file, 0))
        yield self._here[file]
        self._left[file] -= 1
        if not self._left[file]:
            self._passing.drop(file)
            del self._here[file]

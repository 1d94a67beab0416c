"""Makings of a file, computed a little ahead of where it is written, by a few threads at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from moeprune.checkpoint.copying import OnBytes, read_into
from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.making import Piece
from moeprune.errors import CheckpointError

_AT_ONCE = 8
# Read or made and not yet written, of one file; a making that is larger is alone. Two weights of
# the largest experts fit (Mixtral 8x22B: 6144 x 16384 in 16 bits).
_BYTES_AHEAD = 640 << 20


def makers(edits: Iterable[TensorEdit]) -> AbstractContextManager[Executor | None]:
    """Threads that compute the makings among ``edits``; None where there are none."""
    if not any(edit.making for edit in edits):
        return nullcontext()
    return ThreadPoolExecutor(_workers(), thread_name_prefix="making")


class MadeAhead:
    """Hands out what makings give, in order; leaves no thread at work on the file.

    Args:
        edits: of the source file, in the order in which they are written.
        index: the source.
        source: the file; unbuffered.
        on_read: told where in the file is about to be read.
        executor: computes; None where no edit has a making.
    """

    def __init__(
        self,
        edits: Sequence[TensorEdit],
        index: CheckpointIndex,
        source: BinaryIO,
        on_read: OnBytes,
        executor: Executor | None,
    ) -> None:
        self._left = deque(edit for edit in edits if edit.making is not None and edit.part == 0)
        self._index = index
        self._source = source
        self._on_read = on_read
        self._executor = executor
        self._ahead: deque[tuple[TensorEdit, int, Future[list[memoryview]]]] = deque()
        self._bytes = 0

    def __enter__(self) -> MadeAhead:
        self._submit()
        return self

    def take(self, edit: TensorEdit) -> Iterator[memoryview]:
        """The bytes of every tensor of the making that ``edit`` is the first of.

        Raises:
            CheckpointError: a file ended early, or what came out is of another size than stated.
        """
        first, size, future = self._ahead.popleft()
        assert first is edit, (first.target, edit.target)
        made = future.result()
        yield from made
        del made, future
        self._bytes -= size
        self._submit()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        left = [future for _, _, future in self._ahead]
        self._ahead.clear()
        for future in left:
            future.cancel()
        wait(left)  # they read from a file that is closed next

    def _submit(self) -> None:
        while self._left and len(self._ahead) <= _workers():
            size = _size(self._left[0])
            if self._ahead and self._bytes + size > _BYTES_AHEAD:
                return
            edit = self._left.popleft()
            self._announce(edit)
            assert self._executor is not None
            future = self._executor.submit(_made, edit, self._index, self._source)
            self._bytes += size
            self._ahead.append((edit, size, future))

    def _announce(self, edit: TensorEdit) -> None:
        assert edit.making is not None
        for piece in edit.making.pieces:
            entry = self._index.entries[piece.source]
            if entry.file == self._index.entries[edit.source].file:
                self._on_read(entry.start + piece.start)


def _size(edit: TensorEdit) -> int:
    """Bytes of what a making reads and gives."""
    assert edit.making is not None
    return sum(p.end - p.start for p in edit.making.pieces) + sum(edit.making.sizes)


def _made(edit: TensorEdit, index: CheckpointIndex, source: BinaryIO) -> list[memoryview]:
    making = edit.making
    assert making is not None
    file = index.entries[edit.source].file
    data = [_read(piece, index, source, file) for piece in making.pieces]
    made = [memoryview(part).cast("B") for part in making.make(data)]
    sizes = tuple(part.nbytes for part in made)
    if sizes != making.sizes:
        raise CheckpointError(
            f"{edit.target}: {list(sizes)} bytes were made where {list(making.sizes)} were due."
        )
    return made


def _read(piece: Piece, index: CheckpointIndex, source: BinaryIO, file: str) -> bytearray:
    """A piece, from the file at hand or from another one; of several threads at once."""
    entry = index.entries[piece.source]
    data = bytearray(piece.end - piece.start)
    if entry.file == file:
        read_into(source, entry.start + piece.start, data)
    else:
        with _opened(index.path / entry.file) as other:
            read_into(other, entry.start + piece.start, data)
    return data


def _workers() -> int:
    return min(_AT_ONCE, _processors())


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}.") from problem

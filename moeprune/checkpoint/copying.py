"""Move byte ranges between files: in the kernel where it can, else through one bounded buffer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from moeprune.checkpoint.edits import RowRuns
from moeprune.errors import CheckpointError

# The kernel is asked for pieces of this size, so that progress and interrupts come through.
_KERNEL_BYTES = 16 << 20
_BUFFER_BYTES = 4 << 20
# Runs shorter than this are gathered by numpy: a system call for each would cost more.
_SHORT_RUN = 256 << 10
_NOT_HERE = frozenset(
    {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY}
)

OnBytes = Callable[[int], None]


class Copier:
    """Copies to the end of ``target``; both files are unbuffered."""

    def __init__(self, target: BinaryIO, on_bytes: OnBytes) -> None:
        self._target = target
        self._on_bytes = on_bytes
        self._in_kernel = hasattr(os, "copy_file_range")
        self.on_read: OnBytes = lambda _: None  # told where in the source it is about to read

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``, whole."""
        view = memoryview(data)
        while view:
            view = view[self._target.write(view) :]

    def write_new(self, data: bytes | memoryview) -> None:
        """Append ``data`` that no source has, and count it."""
        self.write(data)
        self._on_bytes(len(data))

    def copy(self, source: BinaryIO, start: int, end: int) -> None:
        """Append the bytes [start, end) of ``source``.

        Raises:
            CheckpointError: the source has become shorter than its header said.
            OSError: the target cannot be written.
        """
        while start < end and self._in_kernel:
            count = min(end - start, _KERNEL_BYTES)
            self.on_read(start)
            try:
                done = os.copy_file_range(source.fileno(), self._target.fileno(), count, start)
            except OSError as problem:
                if problem.errno not in _NOT_HERE:
                    raise
                done = 0
            # Some file systems answer 0 for what they cannot copy; reading tells it from an end.
            self._in_kernel = done > 0
            start += done
            self._on_bytes(done)
        source.seek(start)
        while start < end:
            self.on_read(start)
            data = read_exactly(source, min(end - start, _BUFFER_BYTES))
            self.write(data)
            start += len(data)
            self._on_bytes(len(data))

    def copy_rows(self, source: BinaryIO, start: int, rows: RowRuns) -> None:
        """Append the kept runs of a tensor whose data begins at ``start`` of ``source``."""
        if _gathers(rows):
            self.on_read(start)
            for data in _gathered(source, start, rows):
                self.write(data)
                self._on_bytes(len(data))
            return
        for begin, end in rows:
            self.copy(source, start + begin, start + end)


def _gathers(rows: RowRuns) -> bool:
    if rows.row_bytes > _BUFFER_BYTES:
        return False  # a table of its byte positions would be larger than the buffer
    kept = sum(end - begin for begin, end in rows.runs)
    return (
        len(rows.runs) > 0 and rows.rows * len(rows.runs) > 1 and kept < _SHORT_RUN * len(rows.runs)
    )


def _gathered(source: BinaryIO, start: int, rows: RowRuns) -> Iterator[memoryview]:
    """The kept bytes, a window of whole rows at a time."""
    at_once = max(1, _BUFFER_BYTES // rows.row_bytes)
    source.seek(start)
    for first in range(0, rows.rows, at_once):
        count = min(at_once, rows.rows - first)
        data = read_exactly(source, count * rows.row_bytes)
        window = np.frombuffer(data, dtype=np.uint8).reshape(count, rows.row_bytes)
        kept = np.concatenate([window[:, begin:end] for begin, end in rows.runs], axis=1)
        yield kept.data.cast("B")


def read_exactly(source: BinaryIO, size: int) -> bytes:
    """Exactly ``size`` bytes."""
    parts = []
    while size:
        part = source.read(size)
        if not part:
            raise _ended(source)
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_into(source: BinaryIO, start: int, data: bytearray) -> None:
    """Fill ``data`` with the bytes of ``source`` from ``start``; of several threads at once.

    Raises:
        CheckpointError: the file ends before.
    """
    view = memoryview(data)
    while view:
        count = _read_at(source, start, view[:_KERNEL_BYTES])
        if not count:
            raise _ended(source)
        start += count
        view = view[count:]


def _read_at(source: BinaryIO, start: int, view: memoryview) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(source.fileno(), [view], start)
    # The position is the file's, which threads share: a handle of its own has one of its own.
    with Path(source.name).open("rb", buffering=0) as own:
        own.seek(start)
        return own.readinto(view) or 0


def _ended(source: BinaryIO) -> CheckpointError:
    return CheckpointError(
        f"{source.name} ends early: it changed while it was read. Copy it again."
    )

"""Bytes of a stored tensor, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from moeprune.errors import CheckpointError

CHUNK_BYTES = 4 << 20


def chunks(path: Path, start: int, end: int, *, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The bytes [start, end) of a file, in pieces of at most ``size``.

    Raises:
        CheckpointError: the file cannot be read, or has become shorter than its header said.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            left = end - start
            while left > 0:
                piece = file.read(min(size, left))
                if not piece:
                    raise CheckpointError(
                        f"{path} ends {left} bytes early: it changed while it was read. "
                        "Copy the checkpoint again."
                    )
                left -= len(piece)
                yield piece
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}.") from problem

"""Write the tensors of a making: read its pieces, compute once, append all that came out."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from moeprune.checkpoint.copying import Copier, read_exactly
from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.making import Piece
from moeprune.errors import CheckpointError


def write_made(copier: Copier, index: CheckpointIndex, source: BinaryIO, edit: TensorEdit) -> None:
    """Append all new tensors of the making that ``edit`` is the first of.

    Args:
        copier: where to.
        index: the source.
        source: the file that holds the first piece.
        edit: the first of the making's edits.

    Raises:
        CheckpointError: a file ended early, or what came out is of another size than stated.
    """
    making = edit.making
    assert making is not None
    file = index.entries[edit.source].file
    data = []
    for piece in making.pieces:
        start = index.entries[piece.source].start
        if index.entries[piece.source].file == file:
            copier.on_read(start + piece.start)
            data.append(_read(source, start, piece))
        else:
            with _opened(index.path / index.entries[piece.source].file) as other:
                data.append(_read(other, start, piece))
    made = [memoryview(part).cast("B") for part in making.make(data)]
    sizes = tuple(part.nbytes for part in made)
    if sizes != making.sizes:
        raise CheckpointError(
            f"{edit.target}: {list(sizes)} bytes were made where {list(making.sizes)} were due."
        )
    for part in made:
        copier.write_new(part)


def _read(source: BinaryIO, start: int, piece: Piece) -> bytes:
    source.seek(start + piece.start)
    return read_exactly(source, piece.end - piece.start)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}.") from problem

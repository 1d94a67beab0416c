"""Whether a checkpoint still holds what it held: some of its bytes, and the code it brings.

The fingerprint names a model by its headers and routers, and both stay what they are where training
leaves the routers alone. Who goes on with half-made sums of a model must see that, too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from moeprune.checkpoint.header import TensorEntry
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.reader import chunks
from moeprune.errors import CheckpointError

_PIECE = 4096  # bytes: what a disk reads at once
_ALIKE = 256  # tensors that are looked into, of those whose names differ by numbers only
_PIECES = 1024  # of a whole checkpoint, beside one a tensor

Item = TypeVar("Item")


def sample(index: CheckpointIndex) -> str:
    """Hex SHA-256 of pieces of the tensors: of each, or of 256 where more are alike.

    A tensor that holds a larger share of the checkpoint is looked into in more places. A change
    outside of these places is not seen; training changes nearly every number.

    Raises:
        CheckpointError: a file cannot be read.
    """
    digest = hashlib.sha256()
    apart = max(_PIECE, index.total_bytes // _PIECES)
    for name in sorted(_looked_into(index.entries)):
        entry = index.entries[name]
        digest.update(f"\n{name} ".encode("utf-8", "surrogatepass"))
        for start in _places(entry, apart):
            end = min(start + _PIECE, entry.end)
            for chunk in chunks(index.path / entry.file, start, end):
                digest.update(chunk)
    return digest.hexdigest()


def code_of(index: CheckpointIndex) -> str:
    """Hex SHA-256 of the Python files that come with a checkpoint.

    Raises:
        CheckpointError: one cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for path in sorted(index.path.glob("*.py")):
            digest.update(f"\n{path.name} ".encode("utf-8", "surrogatepass"))
            digest.update(path.read_bytes())
    except OSError as problem:
        what = problem.filename or index.path
        raise CheckpointError(f"{what} cannot be read: {problem.strerror or problem}.") from problem
    return digest.hexdigest()


def _looked_into(names: Iterable[str]) -> Iterator[str]:
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(re.sub("[0-9]+", "#", name), []).append(name)
    for alike in kinds.values():
        yield from _spread(sorted(alike), _ALIKE)


def _spread(items: Sequence[Item], most: int) -> Iterator[Item]:
    """At most that many, evenly: the first one, and the last where there are several."""
    number = min(most, len(items))
    for place in range(number):
        yield items[place * (len(items) - 1) // max(1, number - 1)]


def _places(entry: TensorEntry, apart: int) -> Iterator[int]:
    """Where the pieces begin: the middle of each stretch."""
    stretches = max(1, -(-entry.info.nbytes // apart))
    for stretch in range(stretches):
        middle = entry.start + (2 * stretch + 1) * entry.info.nbytes // (2 * stretches)
        yield max(entry.start, middle - _PIECE // 2)

"""The distinct documents of a source, of which those that are drawn are held and no others.

A file may be larger than memory, and little of it drawn. So it is read twice: first every row is
checked and 24 bytes are kept of its document, then the rows that are wanted become documents again,
one at a time.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from moeprune.errors import DomainError
from moeprune.observe.rows import Document

Numbers = NDArray[np.int64]
# Yields the documents of a file with their numbers: all, or those of the given numbers, ascending.
Read = Callable[[Numbers | None], Iterator[tuple[int, Document]]]
T = TypeVar("T")

_BYTES = 16  # of a digest: no two of 10^12 documents share one by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a SOURCE holds: documents in the source's order, none of them blank, no two equal.

    Attributes:
        name: how stats name it: ``builtin:math``, ``hf:…``, or a file's name without its folder, so
            that the same file gives the same bytes wherever it lies.
        total: its documents.
        take: gives the documents at these places, 0 to ``total - 1``, ascending. A file is read
            again for it, and ``DomainError`` raised where it has changed.
        running: the file is one running text, which is cut into documents of equal length.
        duplicates: documents left out because an earlier one is exactly equal.
    """

    name: str
    total: int
    take: Callable[[Sequence[int]], Iterator[Document]]
    running: bool = False
    duplicates: int = 0

    @property
    def documents(self) -> tuple[Document, ...]:
        """All of them, held in memory."""
        return tuple(self.take(range(self.total)))


def held(
    name: str, documents: Sequence[Document], *, duplicates: int, running: bool = False
) -> Source:
    """A source of distinct documents that are in memory."""

    def take(places: Sequence[int]) -> Iterator[Document]:
        return (documents[place] for place in places)

    return Source(
        name=name, total=len(documents), take=take, running=running, duplicates=duplicates
    )


def source_of(
    name: str, documents: Iterable[Document], where: object, *, running: bool = False
) -> Source:
    """A source of those documents that are neither blank nor equal to an earlier one, all held.

    Raises:
        DomainError: none is left.
    """
    distinct = Distinct()
    kept = tuple(document for document in documents if distinct.takes(document))
    if not kept:
        raise _none(where)
    return held(name, kept, duplicates=distinct.dropped, running=running)


def source_of_file(name: str, read: Read, path: Path) -> Source:
    """A source of those documents of a file that are neither blank nor equal to an earlier one.

    Args:
        name: of the source.
        read: reads the file from its beginning, whenever it is called.
        path: of the file. One that can be read only once, as a pipe, is held in memory.

    Raises:
        DomainError: none is left.
    """
    if not path.is_file():
        return source_of(name, (document for _, document in read(None)), path)
    numbers, digests = array("q"), bytearray()
    for number, document in read(None):
        if not document.blank:
            numbers.append(number)
            digests += _digest(document)
    if not numbers:
        raise _none(path)
    found = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    first = _first_places(found)
    kept = _Kept(path, read, np.frombuffer(numbers, np.int64)[first], found[first])
    return Source(name=name, total=first.size, take=kept.take, duplicates=len(numbers) - first.size)


def picked(items: Iterable[T], numbers: Numbers | None) -> Iterator[tuple[int, T]]:
    """Items with their numbers, from 1 on: all, or those of the given numbers, ascending."""
    if numbers is None:
        yield from enumerate(items, start=1)
        return
    wanted = iter(numbers.tolist())
    following = next(wanted, None)
    for number, item in enumerate(items, start=1):
        if following is None:
            return
        if number == following:
            yield number, item
            following = next(wanted, None)


class Distinct:
    """Remembers the documents it was shown.

    Attributes:
        dropped: documents that were equal to an earlier one.
    """

    def __init__(self) -> None:
        self._seen: set[bytes] = set()  # hashes: the texts themselves may fill the memory
        self.dropped = 0

    def takes(self, document: Document) -> bool:
        """Whether it holds text that no document before it held."""
        if document.blank:
            return False
        digest = _digest(document)
        if digest in self._seen:
            self.dropped += 1
            return False
        self._seen.add(digest)
        return True


@dataclass(frozen=True, slots=True)
class _Kept:
    """The distinct documents of a file, by their numbers (N,) and digests (N, 2)."""

    path: Path
    read: Read
    numbers: Numbers
    digests: NDArray[np.uint64]

    def take(self, places: Sequence[int]) -> Iterator[Document]:
        chosen = np.asarray(places, np.int64)
        again = self.read(self.numbers[chosen])
        for place, number in zip(places, self.numbers[chosen].tolist(), strict=True):
            try:
                found, document = next(again, (0, None))
            except DomainError as problem:
                raise DomainError(
                    f"{self.path} is no longer what it was when it was read first: {problem}"
                ) from problem
            if document is None or found != number:
                raise self._changed("holds fewer documents")
            if _digest(document) != self.digests[place].tobytes():
                raise self._changed(
                    f"{document.where.removeprefix(f'{self.path}, ')} is another one"
                )
            yield document

    def _changed(self, how: str) -> DomainError:
        return DomainError(
            f"{self.path} has changed while it was read ({how}). Start again when nothing writes "
            "to it."
        )


def _digest(document: Document) -> bytes:
    text = document.text
    # A text, a prompt and a chat are never equal: the first sign tells them apart.
    kind = "p" if document.whole else "t"
    key = f"{kind}{text}" if isinstance(text, str) else f"m{json.dumps(text, sort_keys=True)}"
    return hashlib.sha256(key.encode()).digest()[:_BYTES]


def _first_places(digests: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where each distinct row of ``digests`` (N, 2) stands first, ascending."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: of equal rows the first is first
    ordered = digests[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = np.any(ordered[1:] != ordered[:-1], axis=1)
    return np.sort(order[new])


def _none(where: object) -> DomainError:
    return DomainError(f"{where} holds no document. Give it at least one line of text.")

"""Domains of calibration text: from a source to the token ids of numbered documents.

A document is one row of a JSONL file or a table, one part of a text file between form feeds, or one
piece of a running text; of equal documents the first counts. Its first ``length`` tokens are used.
Documents are numbered after sampling; document i belongs to fold i mod F and to shard i mod n, so
shards and folds never depend on batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.errors import DomainError, UsageError
from moeprune.observe.distinct import Source
from moeprune.observe.rows import Document
from moeprune.observe.sources import read_source, streamed
from moeprune.observe.targets import Targets, encode_answers
from moeprune.observe.tokenizer import encode, encode_running

Ids = NDArray[np.int32]

_SEEDS = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The tokenised documents of one domain, or one shard of them.

    Attributes:
        name: the domain.
        source: see :class:`moeprune.observe.sources.Source`.
        sha256: over the token ids of all documents of the domain.
        total: documents of the whole domain.
        numbers: number of each document in the whole domain.
        documents: int32 token ids of each document, none empty.
        shard: ``(index, of)``.
        duplicates: documents of the source that were left out, being equal to an earlier one.
        starts: place of the first token of each document that is counted, the ones before it being
            read only; empty: every token is counted.
        targets: (T,) bool of each document: tokens whose loss is taken; empty: all that are
            counted. A document's first token is never one, since nothing predicts it.
    """

    name: str
    source: str
    sha256: str
    total: int
    numbers: tuple[int, ...]
    documents: tuple[Ids, ...]
    shard: tuple[int, int] = (0, 1)
    duplicates: int = 0
    starts: tuple[int, ...] = ()
    targets: tuple[Targets, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens of the documents it holds."""
        return sum(ids.size for ids in self.documents)

    @property
    def num_counted(self) -> int:
        """Tokens that are counted, of the documents it holds."""
        return self.num_tokens - sum(self.starts)

    @property
    def num_targets(self) -> int:
        """Tokens whose loss is taken, of the documents it holds."""
        if self.targets:
            return sum(int(np.count_nonzero(own[1:])) for own in self.targets)
        starts = self.starts or (0,) * len(self.documents)
        pairs = zip(self.documents, starts, strict=True)
        return sum(ids.size - max(1, start) for ids, start in pairs)

    def cut(self, length: int) -> Corpus:
        """The same documents, of which only the first ``length`` tokens are used."""
        documents = tuple(ids[:length] for ids in self.documents)
        targets = tuple(own[:length] for own in self.targets)
        return replace(
            self, documents=documents, targets=targets, sha256=sha256_of(documents, targets)
        )

    def take_shard(self, index: int, of: int) -> Corpus:
        """The documents whose number is ``index`` modulo ``of``; they keep their numbers."""
        check_shard(index, of)
        mine = [row for row, number in enumerate(self.numbers) if number % of == index]
        return replace(self.rows(mine), shard=(index, of))

    def rows(self, rows: Sequence[int]) -> Corpus:
        """Some of the documents it holds, which keep their numbers."""
        return replace(
            self,
            numbers=tuple(self.numbers[row] for row in rows),
            documents=tuple(self.documents[row] for row in rows),
            starts=tuple(self.starts[row] for row in rows if self.starts),
            targets=tuple(self.targets[row] for row in rows if self.targets),
        )


def check_shard(index: int, of: int) -> None:
    """Check that there is such a shard.

    Raises:
        UsageError: there is not.
    """
    if of < 1 or not 0 <= index < of:
        raise UsageError(f"shard {index}/{of} does not exist; of 4 shards, name 0/4 to 3/4.")


def read_corpus(
    name: str,
    source: str,
    *,
    tokenizer: Any,
    length: int,
    samples: int | None = None,
    seed: int = 0,
    skip: int = 0,
    chat_template: bool = True,
    answers: bool = False,
) -> Corpus:
    """Read, sample and tokenise one domain.

    Args:
        name: the domain.
        source: see :func:`moeprune.observe.sources.read_source`.
        tokenizer: of the model; see :func:`moeprune.observe.tokenizer.load_tokenizer`.
        length: a document's tokens after that many are left out.
        samples: at most that many documents, drawn by ``seed``, in their original order.
        seed: of the draw; the same for every domain.
        skip: documents drawn before those, by a draw with the same seed, which are left out.
        chat_template: write chats as the tokenizer's template does; see
            :func:`moeprune.observe.tokenizer.encode`.
        answers: find out which tokens are of an answer, where rows say so; see
            :mod:`moeprune.observe.targets`. Else all are targets.

    Raises:
        DomainError: no document, or no token in any of them.
        UsageError: ``length`` or ``samples`` below 1, or ``seed`` out of range.
    """
    check_draw(length=length, samples=samples, seed=seed)
    read = read_source(source, samples=samples, seed=seed, skip=skip)
    if read.running:
        pieces = encode_running(read.documents[0], tokenizer=tokenizer, length=length)
        documents = [pieces[row] for row in drawn(len(pieces), samples, seed, skip)]
        targets: Sequence[Targets] = ()
    else:
        if streamed(source):  # the stream was drawn from while it was read
            samples, skip = None, 0
        chosen = read.take(drawn(read.total, samples, seed, skip))
        how = {"tokenizer": tokenizer, "length": length, "chat_template": chat_template}
        documents, targets = _encoded(chosen, answers=answers, **how)
    if not documents:
        raise DomainError(
            f"domain {name!r} ({source}) has no token after tokenising. Give it longer text."
        )
    return _corpus(name, read, documents, targets)


def check_draw(*, length: int, samples: int | None, seed: int) -> None:
    """Check the numbers by which documents are drawn and cut.

    Raises:
        UsageError: one is out of range.
    """
    if length < 1 or (samples is not None and samples < 1):
        raise UsageError(f"--length {length} and --samples {samples} must be at least 1.")
    if not 0 <= seed < _SEEDS:
        raise UsageError(f"--seed {seed} is out of range; use 0 to {_SEEDS - 1}.")


def _encoded(
    chosen: Iterable[Document], *, answers: bool, **how: Any
) -> tuple[list[Ids], Sequence[Targets]]:
    """Token ids of documents, none empty, and their targets; none where all tokens are."""
    # Copies, since what is cut off would stay in memory beside a view.
    if not answers:
        encoded = (encode(document, **how).copy() for document in chosen)
        return [ids for ids in encoded if ids.size], ()
    both = [encode_answers(document, **how) for document in chosen]
    kept = [(ids.copy(), targets.copy()) for ids, targets in both if ids.size]
    whole = all(targets[1:].all() for _, targets in kept)
    return [ids for ids, _ in kept], () if whole else [targets for _, targets in kept]


def drawn(available: int, samples: int | None, seed: int, skip: int = 0) -> Sequence[int]:
    """Which of ``available`` documents are taken: at most ``samples``, in their order."""
    if not skip and (samples is None or samples >= available):
        return range(available)
    # RandomState, because numpy promises its stream for ever; a Generator's may change.
    taken = np.random.RandomState(seed).permutation(available)[skip:][:samples]
    return sorted(int(row) for row in taken)


def _corpus(
    name: str, read: Source, documents: Sequence[Ids], targets: Sequence[Targets]
) -> Corpus:
    return Corpus(
        name=name,
        source=read.name,
        sha256=sha256_of(documents, targets),
        total=len(documents),
        numbers=tuple(range(len(documents))),
        documents=tuple(documents),
        duplicates=read.duplicates,
        targets=tuple(targets),
    )


def sha256_of(documents: Iterable[Ids], targets: Iterable[Targets] = ()) -> str:
    """Over the token ids of documents, where each of them ends, and targets that are not all."""
    digest = hashlib.sha256()
    for ids in documents:
        digest.update(ids.size.to_bytes(8, "little"))  # so that document borders count too
        digest.update(ids.astype("<i4").tobytes())
    for own in targets:
        digest.update(np.packbits(own).tobytes())
    return digest.hexdigest()

"""Domains of calibration text: from ``NAME=SOURCE`` to the token ids of numbered documents.

A document is one row of a JSONL file or a table, one part of a text file between form feeds, or one
piece of a running text; of equal documents the first counts. Its first ``length`` tokens are used.
Documents are numbered after sampling; document i belongs to fold i mod F and to shard i mod n, so
shards and folds never depend on batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.errors import DomainError, UsageError
from moeprune.observe.distinct import Source
from moeprune.observe.rows import Document
from moeprune.observe.sources import BUILTIN, builtin_names, read_source, streamed
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

    @property
    def num_tokens(self) -> int:
        """Tokens of the documents it holds."""
        return sum(ids.size for ids in self.documents)

    @property
    def num_counted(self) -> int:
        """Tokens that are counted, of the documents it holds."""
        return self.num_tokens - sum(self.starts)

    def cut(self, length: int) -> Corpus:
        """The same documents, of which only the first ``length`` tokens are used."""
        documents = tuple(ids[:length] for ids in self.documents)
        return replace(self, documents=documents, sha256=sha256_of(documents))

    def take_shard(self, index: int, of: int) -> Corpus:
        """The documents whose number is ``index`` modulo ``of``; they keep their numbers."""
        check_shard(index, of)
        mine = [row for row, number in enumerate(self.numbers) if number % of == index]
        return replace(
            self,
            numbers=tuple(self.numbers[row] for row in mine),
            documents=tuple(self.documents[row] for row in mine),
            shard=(index, of),
            starts=tuple(self.starts[row] for row in mine if self.starts),
        )


def check_shard(index: int, of: int) -> None:
    """Check that there is such a shard.

    Raises:
        UsageError: there is not.
    """
    if of < 1 or not 0 <= index < of:
        raise UsageError(f"shard {index}/{of} does not exist; of 4 shards, name 0/4 to 3/4.")


def parse_domain(text: str, *, option: str = "--domain") -> tuple[str, str]:
    """Split ``NAME=SOURCE``.

    Args:
        text: to split.
        option: under which the user gave it.

    Raises:
        UsageError: no ``=``, or one side is empty.
    """
    name, equals, source = text.partition("=")
    if not equals or not name.strip() or not source.strip():
        raise UsageError(
            f"{option} {text!r} is not NAME=SOURCE. Write for example math=builtin:math."
        )
    return name.strip(), source.strip()


def named_domains(
    domains: Mapping[str, str] | Sequence[str] | None, *, option: str = "--domain"
) -> dict[str, str]:
    """Name -> source, checked; None gives the built-in domains.

    Args:
        domains: as the user names them.
        option: under which.

    Raises:
        DomainError: a name occurs twice, is empty or cannot name a tensor.
        UsageError: an entry is not ``NAME=SOURCE``, or there is none.
    """
    if domains is None:
        pairs = [(name, BUILTIN + name) for name in builtin_names()]
    elif isinstance(domains, Mapping):
        pairs = list(domains.items())
    else:
        texts = [domains] if isinstance(domains, str) else domains
        pairs = [parse_domain(text, option=option) for text in texts]
    if not pairs:
        raise UsageError("no domain to calibrate on. Name at least one with --domain NAME=SOURCE.")
    found: dict[str, str] = {}
    for name, source in pairs:
        if not name.strip() or "/" in name or not name.isprintable():
            raise DomainError(
                f"a domain cannot be called {name!r}: stats are stored under NAME/FIELD. "
                "Use a printable name without '/'."
            )
        if name in found:
            raise DomainError(
                f"domain {name!r} is given twice ({found[name]} and {source}). Rename one."
            )
        found[name] = str(source)
    return found


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

    Raises:
        DomainError: no document, or no token in any of them.
        UsageError: ``length`` or ``samples`` below 1, or ``seed`` out of range.
    """
    check_draw(length=length, samples=samples, seed=seed)
    read = read_source(source, samples=samples, seed=seed, skip=skip)
    if read.running:
        pieces = encode_running(read.documents[0], tokenizer=tokenizer, length=length)
        documents = [pieces[row] for row in drawn(len(pieces), samples, seed, skip)]
    else:
        if streamed(source):  # the stream was drawn from while it was read
            samples, skip = None, 0
        chosen = read.take(drawn(read.total, samples, seed, skip))
        how = {"tokenizer": tokenizer, "length": length, "chat_template": chat_template}
        documents = _encoded(chosen, **how)
    if not documents:
        raise DomainError(
            f"domain {name!r} ({source}) has no token after tokenising. Give it longer text."
        )
    return _corpus(name, read, documents)


def check_draw(*, length: int, samples: int | None, seed: int) -> None:
    """Check the numbers by which documents are drawn and cut.

    Raises:
        UsageError: one is out of range.
    """
    if length < 1 or (samples is not None and samples < 1):
        raise UsageError(f"--length {length} and --samples {samples} must be at least 1.")
    if not 0 <= seed < _SEEDS:
        raise UsageError(f"--seed {seed} is out of range; use 0 to {_SEEDS - 1}.")


def _encoded(chosen: Iterable[Document], **how: Any) -> list[Ids]:
    # Copies, since what is cut off would stay in memory beside a view.
    encoded = (encode(document, **how).copy() for document in chosen)
    return [ids for ids in encoded if ids.size]


def drawn(available: int, samples: int | None, seed: int, skip: int = 0) -> Sequence[int]:
    """Which of ``available`` documents are taken: at most ``samples``, in their order."""
    if not skip and (samples is None or samples >= available):
        return range(available)
    # RandomState, because numpy promises its stream for ever; a Generator's may change.
    taken = np.random.RandomState(seed).permutation(available)[skip:][:samples]
    return sorted(int(row) for row in taken)


def _corpus(name: str, read: Source, documents: Sequence[Ids]) -> Corpus:
    return Corpus(
        name=name,
        source=read.name,
        sha256=sha256_of(documents),
        total=len(documents),
        numbers=tuple(range(len(documents))),
        documents=tuple(documents),
        duplicates=read.duplicates,
    )


def sha256_of(documents: Iterable[Ids]) -> str:
    """Over the token ids of documents, and where each of them ends."""
    digest = hashlib.sha256()
    for ids in documents:
        digest.update(ids.size.to_bytes(8, "little"))  # so that document borders count too
        digest.update(ids.astype("<i4").tobytes())
    return digest.hexdigest()

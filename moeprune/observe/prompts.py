"""Prompts of a domain: what a model is to answer, or the beginning of a text it is to go on with.

A row with ``messages`` is rendered up to the answer by the tokenizer's chat template; a ``prompt``
is given as it stands. Of a plain text the first half is the prompt, or its first
``prompt_length`` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from moeprune.errors import DomainError, UsageError
from moeprune.observe.domains import Ids, check_draw, check_shard, drawn, sha256_of
from moeprune.observe.rows import Document
from moeprune.observe.sources import read_source, streamed
from moeprune.observe.tables import columns_named
from moeprune.observe.tokenizer import encode_question, encode_running

_LEFT = "--length, and what the model's positions leave beside --max-new-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The tokenised prompts of one domain, or one shard of them.

    Attributes:
        name: the domain.
        source: see :class:`moeprune.observe.sources.Source`.
        sha256: over the token ids of all prompts of the domain.
        total: prompts of the whole domain.
        numbers: number of each prompt in the whole domain.
        ids: int32 token ids of each, none empty.
        documents: the chat or prompt each was made of, None where it is a text's beginning.
        shard: ``(index, of)``.
        duplicates: documents of the source that were left out, being equal to an earlier one.
    """

    name: str
    source: str
    sha256: str
    total: int
    numbers: tuple[int, ...]
    ids: tuple[Ids, ...]
    documents: tuple[Document | None, ...]
    shard: tuple[int, int] = (0, 1)
    duplicates: int = 0

    @property
    def has_chats(self) -> bool:
        """Whether a chat template made any of them."""
        return any(document is not None and document.is_chat for document in self.documents)

    def take_shard(self, index: int, of: int) -> Prompts:
        """The prompts whose number is ``index`` modulo ``of``; they keep their numbers."""
        check_shard(index, of)
        mine = [row for row, number in enumerate(self.numbers) if number % of == index]
        return replace(
            self,
            numbers=tuple(self.numbers[row] for row in mine),
            ids=tuple(self.ids[row] for row in mine),
            documents=tuple(self.documents[row] for row in mine),
            shard=(index, of),
        )


def read_prompts(
    name: str,
    source: str,
    *,
    tokenizer: Any,
    template: Mapping[str, Any],
    length: int,
    room: int | None = None,
    prompt_length: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    on_warning: Callable[[str], None] | None = None,
) -> Prompts:
    """Read, sample and tokenise the prompts of one domain.

    Args:
        name: the domain.
        source: see :func:`moeprune.observe.sources.read_source`.
        tokenizer: of the model.
        template: what the chat template is told.
        length: tokens that a prompt may have; of a text, those that are looked at.
        room: tokens that a prompt may have, where that is less.
        prompt_length: tokens of a text that are its prompt; None: half of them, or the room.
        samples: at most that many documents, drawn by ``seed``, in their original order.
        seed: of the draw.
        on_warning: told where prompts of a stream are too long, and left out: nobody can leave them
            out of it beforehand; and where questions of a column may be asked by half.

    Raises:
        DomainError: no prompt, or one of a file that is too long.
        UsageError: a number out of range.
    """
    check_draw(length=length, samples=samples, seed=seed)
    room = length if room is None else min(length, room)
    if prompt_length is not None and prompt_length > room:
        raise UsageError(
            f"--prompt-length {prompt_length}: a prompt may have {room} tokens ({_LEFT}). "
            "Give a smaller one, or change them."
        )
    read = read_source(source, samples=samples, seed=seed, prompts=True)

    def head(ids: Ids) -> Ids:
        return ids[: min(max(1, ids.size // 2), room) if prompt_length is None else prompt_length]

    found: list[tuple[Ids, Document | None]] = []
    long = halves = 0
    if read.running:
        pieces = encode_running(read.documents[0], tokenizer=tokenizer, length=length)
        found = [(head(pieces[row]), None) for row in drawn(len(pieces), samples, seed)]
    else:
        # A stream was drawn from while it was read.
        most = None if streamed(source) else samples
        for document in read.take(drawn(read.total, most, seed)):
            ids = encode_question(
                document,
                tokenizer=tokenizer,
                length=None if document.whole else length,
                template=template,
            )
            if document.whole and streamed(source) and ids.size > room:
                long += 1
                continue
            if document.whole:
                check_prompt(ids, document.where, room)
                found.append((ids, document))
            else:  # a copy, since what is cut off would stay in memory beside a view
                found.append((head(ids).copy(), None))
                halves += prompt_length is None and ids.size > 0
    found = [(ids, document) for ids, document in found if ids.size]
    column = columns_named(source)
    if on_warning is not None and halves and column not in (None, "text"):
        on_warning(
            f"domain {name!r}: of each text of column {column!r} the first half is the prompt. "
            f"Where they are questions, ask them whole with --prompt-length {room}."
        )
    if long:
        said = f"domain {name!r}: {long} of {long + len(found)} prompts have over {room} tokens"
        if not found:
            raise DomainError(f"{said} ({_LEFT}). Change them.")
        if on_warning is not None:
            on_warning(f"{said} ({_LEFT}) and are left out.")
    if not found:
        raise DomainError(
            f"domain {name!r} ({source}) has no token after tokenising. Give it longer text."
        )
    return Prompts(
        name=name,
        source=read.name,
        sha256=sha256_of(ids for ids, _ in found),
        total=len(found),
        numbers=tuple(range(len(found))),
        ids=tuple(ids for ids, _ in found),
        documents=tuple(document for _, document in found),
        duplicates=read.duplicates,
    )


def check_prompt(ids: Ids, where: str, length: int) -> None:
    """Check that a prompt fits: cut, it would be another one.

    Raises:
        DomainError: it does not.
    """
    if ids.size > length:
        raise DomainError(
            f"{where}: the prompt has {ids.size} tokens, {length} are allowed ({_LEFT}). "
            "Leave it out, or change them."
        )

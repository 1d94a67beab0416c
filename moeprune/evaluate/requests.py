"""What a model is asked, in token ids: pieces to score, or a prompt to go on with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moeprune.core.tasks import Question
from moeprune.errors import UsageError
from moeprune.evaluate.encoding import Encoder, Ids

Key = tuple[str, int]
"""A question's id and the seed of the draws."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """A continuation that is scored after a context.

    Attributes:
        context: int32 ids, at least one.
        continuation: int32 ids, at least one.
    """

    context: Ids
    continuation: Ids

    @property
    def input(self) -> Ids:
        """What the model reads: the last token is only predicted."""
        return np.concatenate([self.context, self.continuation[:-1]])

    @property
    def input_size(self) -> int:
        """Tokens of :attr:`input`."""
        return int(self.context.size + self.continuation.size - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One question as the model is given it.

    Attributes:
        question: what it was made of.
        pieces: to score; empty where an answer is written.
        prompt: ids to go on with; None where nothing is written.
        seed: of the draws; 0 where nothing is drawn.
        cut: tokens left out on the left, since the model does not read as many at once.
        notes: what the answer is to record beside what was found.
        sha256: of all ids given to the model.
    """

    question: Question
    pieces: tuple[Piece, ...] = ()
    prompt: Ids | None = None
    seed: int = 0
    cut: int = 0
    notes: Mapping[str, Any] = field(default_factory=dict)
    sha256: str = field(init=False, default="")

    def __post_init__(self) -> None:
        given = [ids for piece in self.pieces for ids in (piece.context, piece.continuation)]
        if self.prompt is not None:
            given.append(self.prompt)
        object.__setattr__(self, "sha256", sha256_of(given))

    @property
    def key(self) -> Key:
        """What tells it from the others of its task."""
        return self.question.id, self.seed

    @property
    def num_rows(self) -> int:
        """Sequences that a forward pass reads for it: pieces that read the same share one."""
        return max(1, len({piece.input.tobytes() for piece in self.pieces}))

    @property
    def size(self) -> int:
        """Tokens of its longest input."""
        if self.prompt is not None:
            return int(self.prompt.size)
        return max(piece.input_size for piece in self.pieces)


def sha256_of(given: Iterable[Ids]) -> str:
    """Of several sequences of token ids; where each ends matters."""
    found = hashlib.sha256()
    for ids in given:
        found.update(len(ids).to_bytes(8, "little"))
        found.update(np.ascontiguousarray(ids, "<i4").tobytes())
    return found.hexdigest()


def inputs_sha256(requests: Sequence[Request]) -> str:
    """Of all requests of a task: two variants with the same were given the same, byte for byte."""
    lines = (f"{request.question.id}\n{request.seed}\n{request.sha256}\n" for request in requests)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def to_score(question: Question, pairs: Iterable[tuple[str, str]], *, encoder: Encoder) -> Request:
    """A request that scores continuations, each cut on the left to what the model reads.

    Args:
        question: it is made of.
        pairs: a context and a continuation for each choice.
        encoder: of the model.

    Raises:
        UsageError: a continuation has no token, or too many.
    """
    pieces, cut = [], 0
    try:
        for context, continuation in pairs:
            before, after = encoder.pair(context, continuation)
            over = max(0, before.size + after.size - (encoder.max_length + 1))
            cut = max(cut, over)
            pieces.append(Piece(context=before[over:], continuation=after))
    except UsageError as problem:
        raise UsageError(f"question {question.id!r}: {problem}") from None
    return Request(question=question, pieces=tuple(pieces), cut=cut)


def to_write(
    question: Question, text: str, *, encoder: Encoder, max_new_tokens: int, seed: int
) -> Request:
    """A request that has an answer written, its prompt cut on the left so that the answer fits.

    Args:
        question: it is made of.
        text: the prompt.
        encoder: of the model.
        max_new_tokens: budget of the answer.
        seed: of the draws.

    Raises:
        UsageError: the budget leaves no room for a prompt.
    """
    room = encoder.max_length - max_new_tokens
    if room < 1:
        raise UsageError(
            f"max_new_tokens {max_new_tokens} leaves no room for a question: the model reads "
            f"{encoder.max_length} tokens at once. Give less."
        )
    ids = encoder.prompt(text)
    over = max(0, ids.size - room)
    return Request(question=question, prompt=ids[over:], seed=seed, cut=over)

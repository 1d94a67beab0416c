"""Which tokens of a document are of an answer: those whose loss is taken.

A token that holds the end of a question and the beginning of its answer is of the answer: a model
that is asked never reads that token, and where " yes" is one token, to leave it out would be to
leave out the answer. What a tokenizer adds behind a text, as a token that ends it, goes with the
token before it. A document's first token is none, since nothing predicts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.errors import DomainError
from moeprune.observe.answers import Span, answer_spans
from moeprune.observe.around import inner_ids, special_ends
from moeprune.observe.beginnings import first_ids
from moeprune.observe.quiet import foreign_errors
from moeprune.observe.rows import Document
from moeprune.observe.tokenizer import token_ids
from moeprune.observe.written import written

Ids = NDArray[np.int32]
Targets = NDArray[np.bool_]

_SPACE = "Ġ"  # in the names of byte-level tokens


def encode_answers(
    document: Document, *, tokenizer: Any, length: int, chat_template: bool = True
) -> tuple[Ids, Targets]:
    """Token ids as :func:`moeprune.observe.tokenizer.encode` gives them, and which are targets.

    Args:
        document: a text, of which all is an answer; or a prompt with a completion, or a chat.
        tokenizer: of the model.
        length: tokens to keep.
        chat_template: render chats with it.

    Returns:
        (T,) int32 and (T,) bool.

    Raises:
        DomainError: as there; or the chat template does not let its answers be found.
    """
    text, special = written(document, tokenizer, chat_template=chat_template)

    def spans(until: int) -> Sequence[Span]:
        if not document.asked and not document.is_chat:
            return [(0, len(text))]
        how: dict[str, Any] = {"chat_template": chat_template, "until": until}
        return answer_spans(document, text, tokenizer, **how)

    if getattr(tokenizer, "is_fast", False):
        ids, targets = _by_places(text, spans, tokenizer, document.where, length, special)
    else:
        whole = spans(len(text))
        ids, targets = _by_beginnings(text, whole, tokenizer, document.where, special)
        ids, targets = ids[:length], targets[:length]
    targets[:1] = False
    return ids, targets


def _by_places(
    text: str,
    spans_until: Callable[[int], Sequence[Span]],
    tokenizer: Any,
    where: str,
    length: int,
    special: bool,
) -> tuple[Ids, Targets]:
    """Of a tokenizer that says which characters each token holds."""
    places: list[Span] = []

    def ids_of(part: str) -> Ids:
        nonlocal places
        with foreign_errors(
            f"{where}: the tokenizer fails on this text", "Leave the text out.", error=DomainError
        ):
            found = tokenizer(
                part, add_special_tokens=special, return_offsets_mapping=True, verbose=False
            )
        places = found["offset_mapping"]  # of the text that is read last
        return np.asarray(found["input_ids"], dtype=np.int32)

    ids = first_ids(text, length, tokenizer=tokenizer, ids_of=ids_of)
    targets = np.zeros(ids.size, np.bool_)
    last = max((end for _, end in places[: ids.size]), default=0)
    spans = spans_until(max(last, _next_start(places, ids.size - 1, text)) + 1)
    begins = {begin for begin, _ in spans}
    read = 0
    for row, (start, end) in enumerate(places[: ids.size]):
        if end > read or start < end:
            # Tokenizers of GPT-2's kind may leave out the spaces at both ends of a token, or all
            # of it.
            first = start if start < end else read
            if start < end and not begins.isdisjoint(range(end, _next_start(places, row, text))):
                name = tokenizer.convert_ids_to_tokens(int(ids[row]))
                end += len(name) - len(name.rstrip(_SPACE))
            targets[row] = any(first < last and end > begin for begin, last in spans)
        else:  # no characters: of the tokenizer's own
            targets[row] = row > 0 and targets[row - 1]
        read = max(read, end)
    return ids, targets


def _next_start(places: Sequence[Span], row: int, text: str) -> int:
    """First character of the next token; of the text's end, where the tokenizer's own follow."""
    if not 0 <= row < len(places) - 1:
        return 0
    start, end = places[row + 1]
    return len(text) if start == end < places[row][1] else start


def _by_beginnings(
    text: str, spans: Sequence[Span], tokenizer: Any, where: str, special: bool
) -> tuple[Ids, Targets]:
    """Of a tokenizer that does not say so: by the tokens of the text up to each border."""

    def ids_of(part: str, *, special: bool) -> Ids:
        return token_ids(part, where, tokenizer, special=special)

    ids = ids_of(text, special=special)
    behind = 0
    if special:
        _, ends = special_ends(
            lambda part: ids_of(part, special=True), lambda part: ids_of(part, special=False)
        )
        behind = ends.size

    def place(at: int, *, last: bool) -> int:
        """Tokens before a border, the one that spans it with them where it is ``last``."""
        if at == len(text):
            return ids.size
        before = ids_of(text[:at], special=special)
        before = before[: before.size - behind]
        same = _common(before, ids)
        if same == before.size:
            return same
        after = inner_ids(text[at:], lambda part: ids_of(part, special=False))
        whole = ids[: ids.size - behind]
        if 0 < after.size <= whole.size and np.array_equal(whole[whole.size - after.size :], after):
            return int(whole.size - after.size)
        return min(same + last, ids.size)

    targets = np.zeros(ids.size, np.bool_)
    for start, end in spans:
        targets[place(start, last=False) : place(end, last=True)] = True
    return ids, targets


def _common(one: Ids, other: Ids) -> int:
    """Tokens with which both begin."""
    size = min(one.size, other.size)
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if differ.size else size

"""Where in the text of a document its answers stand, in characters.

Of prompt and completion the answer is the completion; of a chat it is whatever a model would have
to write after the chat template's own beginning of a turn: the text and the tokens that end it,
but no white space behind these, which belongs to the template. A template that marks what is
generated itself (``{% generation %}``) is taken at its word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from moeprune.core.chat import dated
from moeprune.errors import DomainError
from moeprune.observe.messages import Messages
from moeprune.observe.rows import Document
from moeprune.observe.written import BETWEEN, chat_text, plain_parts

Span = tuple[int, int]

ASSISTANT = "assistant"

_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
_MARK = re.compile(r"[>▷\]]")
_ONE = ({"role": "user", "content": "1"},)
_TAIL = 32  # characters by which the end of an answer is known again
_WAY_OUT = "Leave the row out, or give each answer as a row of prompt and completion."


def answer_spans(
    document: Document, text: str, tokenizer: Any, *, chat_template: bool, until: int
) -> list[Span]:
    """First character of each answer and the one behind its last, ascending; none of them empty.

    Args:
        document: of a source.
        text: that :func:`moeprune.observe.written.written` made of it.
        tokenizer: of the model.
        chat_template: what that was told.
        until: answers that begin there or later need not be found.

    Raises:
        DomainError: the chat template does not let its answers be found.
    """
    if isinstance(document.text, str):
        spans = [(document.asked, len(text))]
    elif not chat_template:
        spans = _plain_spans(document, document.text)
    else:
        answers = _answers(document.text, document.asked)
        spans = _marked_spans(document, text, tokenizer) if answers else []
        for number in () if spans else answers:
            start = _beginning(document.text, number, text, document.where, tokenizer)
            if start >= until:
                break
            end = _end(document.text, number, start, text, document.where, tokenizer)
            spans.append((start, end))
    return [span for span in spans if span[0] < span[1]]


def _answers(messages: Messages, asked: int) -> list[int]:
    return [
        number
        for number, message in enumerate(messages)
        if number >= asked and message["role"] == ASSISTANT
    ]


def _plain_spans(document: Document, messages: Messages) -> list[Span]:
    spans, at = [], 0
    answers = set(_answers(messages, document.asked))
    for number, text in plain_parts(document):
        if number in answers:
            spans.append((at, at + len(text)))
        at += len(text) + len(BETWEEN)
    return spans


def _marked_spans(document: Document, text: str, tokenizer: Any) -> list[Span]:
    """What the template itself marks as generated; none where it marks nothing."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default")
    if not isinstance(template, str) or not _MARKED.search(template):
        return []
    from transformers.utils.chat_template_utils import render_jinja_template

    again, marked = render_jinja_template(
        [list(document.text)],
        chat_template=dated(template),
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
    )
    if again != [text]:
        return []
    first = 0
    if document.asked:
        assert not isinstance(document.text, str)
        first = _beginning(document.text, document.asked, text, document.where, tokenizer)
    return [(max(start, first), end) for start, end in marked[0] if end > first]


def _end(messages: Messages, number: int, start: int, text: str, where: str, tokenizer: Any) -> int:
    """Where in ``text`` the answer ends that a message of the assistant is."""
    ended = _written(messages[: number + 1], number, where, tokenizer)
    if text.startswith(ended):
        return max(start, len(ended.rstrip()))
    # Templates write a last turn otherwise than the same one with others behind it: they leave
    # thoughts out that stand before its text, or end it with another token.
    own = ended[_common(ended, text[:start]) :].rstrip()
    rest = text[start : _following(messages, number + 1, text, where, tokenizer)]
    last, least = _last_words(messages[number], own)
    size = _longest(lambda k: last[len(last) - k :] in rest, len(last))
    if size < least:
        raise DomainError(
            f"{where}: the tokenizer's chat template writes message {number + 1} of the assistant "
            f"otherwise once others follow, so its answer cannot be found. {_WAY_OUT}"
        )
    kept = last[len(last) - size :]
    end = start + rest.find(kept) + size
    behind = own[own.rfind(kept) + size :] if kept in own else ""
    return end + _common(text[end:], behind)


def _following(messages: Messages, number: int, text: str, where: str, tokenizer: Any) -> int:
    """Where in ``text`` the words of a message begin, or its end where that is not known."""
    words = messages[number].get("content")
    if not isinstance(words, str) or not words.strip():
        return len(text)
    other = {**messages[number], "content": "y" if words.strip().startswith("x") else "x"}
    changed = (*messages[:number], other, *messages[number + 1 :])
    return _common(text, _written(changed, number - 1, where, tokenizer))


def _last_words(message: Mapping[str, Any], own: str) -> tuple[str, int]:
    """What an answer ends with, and how many characters of it tell its place.

    Args:
        message: of the assistant.
        own: the message as the template writes it at the end of a chat.
    """
    content = message.get("content")
    if isinstance(content, list) and content and isinstance(content[-1], Mapping):
        content = content[-1].get("text")
    if isinstance(content, str) and content.strip() and not message.get("tool_calls"):
        words = content.strip()
        # What stands before a mark, as the end of a thought, a template may leave out.
        line = words.splitlines()[-1]
        return words, min(_TAIL, len(_MARK.split(line)[-1]) or len(line))
    return own, min(_TAIL, len(own))


def _beginning(messages: Messages, number: int, text: str, where: str, tokenizer: Any) -> int:
    """Where in ``text`` the model would begin to write a message."""
    one = _written(_ONE, number, where, tokenizer)
    header = _written(_ONE, number, where, tokenizer, asks=True).removeprefix(one)
    if number:
        asked = _written(messages[:number], number, where, tokenizer, asks=True)
        start = _common(text, asked)
    else:  # few templates write a chat of no messages
        place = text.find(header)
        start = 0 if place < 0 else place + len(header)
    content = messages[number].get("content")
    if header or not isinstance(content, str):
        return start
    # Without a beginning of the answer's turn in the template, it begins with its text.
    return max(start, text.find(content.strip()[:_TAIL], start))


def _written(
    messages: Messages, number: int, where: str, tokenizer: Any, *, asks: bool = False
) -> str:
    what = f"its messages up to answer {number + 1} alone"
    told = {"add_generation_prompt": True} if asks else {}
    return chat_text(messages, where, tokenizer, what=what, way_out=_WAY_OUT, **told)


def _common(one: str, other: str) -> int:
    """Characters with which both begin."""
    return _longest(lambda k: one[:k] == other[:k], min(len(one), len(other)))


def _longest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` that fits, where all smaller ones do, and 0."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if fits(middle):
            least = middle
        else:
            most = middle - 1
    return least

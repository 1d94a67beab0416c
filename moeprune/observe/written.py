"""The one text that a tokenizer is given of a document, a chat's included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moeprune.core.chat import has_template, rendered
from moeprune.errors import DomainError
from moeprune.observe.messages import Messages
from moeprune.observe.quiet import foreign_errors
from moeprune.observe.rows import Document

BETWEEN = "\n\n"
"""Stands between the messages of a chat that no template writes."""


def written(
    document: Document,
    tokenizer: Any,
    *,
    chat_template: bool,
    told: Mapping[str, Any] | None = None,
) -> tuple[str, bool]:
    """The text, and whether the tokenizer is to add its special tokens: a template writes its own.

    Args:
        document: of a source.
        tokenizer: of the model.
        chat_template: write chats as its template does; else as their texts, a blank line between.
        told: what else the template is told.

    Raises:
        DomainError: a chat, and the tokenizer has no chat template or the template refuses it.
    """
    if isinstance(document.text, str):
        return document.text, True
    if not chat_template:
        return BETWEEN.join(text for _, text in plain_parts(document)), True
    if not has_template(tokenizer):
        raise DomainError(
            f"{document.where} holds 'messages', but the tokenizer has no chat template. "
            "Give rows with 'text' instead, or pass --chat-template off."
        )
    return chat_text(document.text, document.where, tokenizer, **(told or {})), False


def chat_text(
    messages: Messages,
    where: str,
    tokenizer: Any,
    *,
    what: str = "these messages",
    way_out: str = "Give rows with 'text' instead.",
    **told: Any,
) -> str:
    """Messages as the tokenizer's template writes them.

    Args:
        messages: of a chat.
        where: it stands.
        tokenizer: with a template.
        what: the messages are, for an error.
        way_out: of that error.
        told: what else the template is told.

    Raises:
        DomainError: the template refuses them.
    """
    with foreign_errors(
        f"{where}: the tokenizer's chat template refuses {what}",
        way_out,
        error=DomainError,
        also=(ArithmeticError,),
    ):
        return rendered(tokenizer, messages, **told)


def plain_parts(document: Document) -> list[tuple[int, str]]:
    """The texts of a chat's messages, each with its message's number.

    Raises:
        DomainError: there is none.
    """
    texts = [part for number, message in enumerate(document.text) for part in _of(number, message)]
    if not texts:
        raise DomainError(
            f"{document.where} holds 'messages' without any text as their 'content'. "
            "Leave it out, or pass --chat-template on."
        )
    return texts


def _of(number: int, message: Any) -> Iterator[tuple[int, str]]:
    """The texts of a message, of one in parts those of its parts."""
    content = message.get("content") if isinstance(message, Mapping) else None
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str) and text:
            yield number, text

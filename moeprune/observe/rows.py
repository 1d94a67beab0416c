"""Documents, and how a row of a table or of a JSONL file becomes one. No tokenizer here."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moeprune.errors import DomainError
from moeprune.observe.messages import Messages, encodable, messages_of

_ASKING = ("messages", "prompt", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text as the source holds it.

    Attributes:
        text: the text, or the messages of a chat that the tokenizer's template turns into text.
        where: file and line, for messages about it.
        whole: it is a prompt to be answered as it stands, not a text that may be cut.
        asked: what of it is no answer: characters of a prompt before its completion, or messages.
            Of a chat, only what the assistant says is an answer.
    """

    text: str | Messages
    where: str
    whole: bool = False
    asked: int = 0

    @property
    def is_chat(self) -> bool:
        """Whether a chat template makes its text."""
        return not isinstance(self.text, str)

    @property
    def blank(self) -> bool:
        """Nothing but white space, or no message."""
        return not (self.text.strip() if isinstance(self.text, str) else self.text)


def row_document(row: Any, where: str, *, table: bool = False) -> Document:
    """A row as a document: ``text``, or ``messages``, or ``prompt`` followed by ``completion``.

    Args:
        row: key -> value; null is as good as no key.
        where: of the row.
        table: the row is of a table.

    Raises:
        DomainError: it has none of them, or not of that type.
    """
    have = _present(row, where)
    if "text" in have:
        return Document(text=row_string(row, "text", where), where=where)
    if "messages" in have:
        return Document(text=_messages(row, "messages", where, table=table), where=where)
    if "prompt" in have and "completion" in have:
        asked: Any
        told: Any
        if isinstance(row["prompt"], list):
            asked = _messages(row, "prompt", where, table=table)
            told = _messages(row, "completion", where, table=table)
        else:
            asked = row_string(row, "prompt", where)
            told = row_string(row, "completion", where)
        return Document(text=asked + told, where=where, asked=len(asked))
    raise DomainError(
        f"{where} has {_keys(row)}; it needs 'text', or 'messages', or 'prompt' and 'completion'."
    )


def row_question(row: Any, where: str, *, table: bool = False) -> Document:
    """A row as a prompt to answer, or a text of which the beginning is one.

    Args:
        row: key -> value; null is as good as no key.
        where: of the row.
        table: the row is of a table.

    Raises:
        DomainError: it has none of the keys, or another type under one.
    """
    have = _present(row, where)
    if "messages" in have or "prompt" in have:
        return Document(text=row_prompt(row, where, table=table), where=where, whole=True)
    if "text" in have:
        return Document(text=row_string(row, "text", where), where=where)
    raise DomainError(f"{where} has {_keys(row)}; it needs 'messages', or 'prompt', or 'text'.")


def row_prompt(row: Mapping[str, Any], where: str, *, table: bool = False) -> str | Messages:
    """What a row asks: its messages without the answer at their end, or its prompt.

    Raises:
        DomainError: it is neither, or nobody asks anything.
    """
    key = "messages" if row.get("messages") is not None else "prompt"
    if key == "prompt" and not isinstance(row[key], list):
        return row_string(row, key, where)
    return _asked(_messages(row, key, where, table=table), where)


def _present(row: Any, where: str) -> set[str]:
    """The keys under which a row holds something."""
    if not isinstance(row, Mapping):
        raise DomainError(f"{where} is a JSON {type(row).__name__}; write one object a line.")
    return {key for key, value in row.items() if value is not None}


def _keys(row: Mapping[str, Any]) -> str:
    named = (key if row[key] is not None else f"{key} (null)" for key in sorted(row))
    return ", ".join(named) or "no key"


def _asked(messages: Messages, where: str) -> Messages:
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages:
        raise DomainError(f"{where} asks nothing; a chat needs a message of a user.")
    return messages


def column_question(row: Mapping[str, Any], columns: str | None, where: str) -> Document:
    """A table's row as a prompt; see :func:`column_document` and :func:`row_question`.

    Raises:
        DomainError: there is no such column, or it holds something else.
    """
    if columns is None:
        if all(row.get(key) is None for key in _ASKING) and set(_ASKING) & set(row):
            return Document(text="", where=where)
        return row_question(row, where, table=True)
    text = column_document(row, columns, where).text
    if isinstance(text, str):
        return Document(text=text, where=where, whole=columns == "prompt")
    return Document(text=_asked(text, where) if text else text, where=where, whole=True)


def column_document(row: Mapping[str, Any], columns: str | None, where: str) -> Document:
    """A table's row as a document; its missing values are None and make an empty text.

    Args:
        row: column -> value.
        columns: a column of texts or of messages; or ``"A+B"``, whose texts are joined by a blank
            line; None: as in a JSONL row.
        where: of the row.

    Raises:
        DomainError: there is no such column, or it holds something else.
    """
    if columns is None:
        present = [name for name, value in row.items() if value is not None]
        if row_has_text(row) and not row_has_text(present):
            return Document(text="", where=where)
        return row_document(row, where, table=True)
    names = columns_of(columns, row)
    for name in names:
        if name not in row:
            raise DomainError(
                f"{where} has no column {name!r}; it has {', '.join(map(str, row)) or 'none'}."
            )
    if len(names) == 1 and isinstance(row[columns], list):
        return Document(text=_messages(row, columns, where, table=True), where=where)
    texts = ["" if row[name] is None else row_string(row, name, where) for name in names]
    text = "\n\n".join(text for text in texts if text)
    answered = names == ["prompt", "completion"] and all(texts)
    return Document(text=text, where=where, asked=len(text) - len(texts[-1]) if answered else 0)


def columns_of(columns: str, have: Container[str]) -> list[str]:
    """``A+B`` as its two names, unless a column is called so."""
    return [columns] if columns in have else columns.split("+")


def row_has_text(row: Iterable[str], *, prompts: bool = False) -> bool:
    """Whether one of the usual keys is among those of a row."""
    keys = set(row)
    if prompts:
        return bool(keys & set(_ASKING))
    return bool(keys & {"text", "messages"}) or {"prompt", "completion"} <= keys


def _messages(row: Mapping[str, Any], key: str, where: str, *, table: bool) -> Messages:
    return messages_of(row[key], f"{where}: {key!r}", table=table)


def row_string(row: Mapping[str, Any], key: str, where: str) -> str:
    """The text under a key of a row, fit for a tokenizer.

    Raises:
        DomainError: it is no text.
    """
    value = row[key]
    if not isinstance(value, str):
        raise DomainError(f"{where}: {key!r} is a {type(value).__name__}; it must be a string.")
    return encodable(value)

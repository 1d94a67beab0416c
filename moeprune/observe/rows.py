"""Documents, and how a row of a table or of a JSONL file becomes one. No tokenizer here."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from moeprune.errors import DomainError

Messages = tuple[Mapping[str, Any], ...]

_ASKING = ("messages", "prompt", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text as the source holds it.

    Attributes:
        text: the text, or the messages of a chat that the tokenizer's template turns into text.
        where: file and line, for messages about it.
        whole: it is a prompt to be answered as it stands, not a text that may be cut.
    """

    text: str | Messages
    where: str
    whole: bool = False

    @property
    def is_chat(self) -> bool:
        """Whether a chat template makes its text."""
        return not isinstance(self.text, str)

    @property
    def blank(self) -> bool:
        """Nothing but white space, or no message."""
        return not (self.text.strip() if isinstance(self.text, str) else self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a SOURCE holds.

    Attributes:
        name: how stats name it: ``builtin:math``, ``hf:…``, or a file's name without its folder, so
            that the same file gives the same bytes wherever it lies.
        documents: in the source's order, none of them blank, no two of them equal.
        running: the file is one running text, which is cut into documents of equal length.
        duplicates: documents left out because an earlier one is exactly equal.
    """

    name: str
    documents: tuple[Document, ...]
    running: bool = False
    duplicates: int = 0


def source_of(name: str, documents: Iterable[Document], where: object, **how: bool) -> Source:
    """A source of those documents that are neither blank nor equal to an earlier one.

    Raises:
        DomainError: none is left.
    """
    distinct = Distinct()
    kept = tuple(document for document in documents if distinct.takes(document))
    if not kept:
        raise DomainError(f"{where} holds no document. Give it at least one line of text.")
    return Source(name=name, documents=kept, duplicates=distinct.dropped, **how)


class Distinct:
    """Remembers the documents it was shown.

    Attributes:
        dropped: documents that were equal to an earlier one.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self.dropped = 0

    def takes(self, document: Document) -> bool:
        """Whether it holds text that no document before it held."""
        if document.blank:
            return False
        text = document.text
        # A text and a chat are never equal: a chat's JSON is told apart by its first sign.
        key = f"t{text}" if isinstance(text, str) else f"m{json.dumps(text, sort_keys=True)}"
        if key in self._seen:
            self.dropped += 1
            return False
        self._seen.add(key)
        return True


def row_text(row: Any, where: str) -> str | Messages:
    """The text of a row: of ``text``, or ``messages``, or ``prompt`` followed by ``completion``.

    Raises:
        DomainError: it has none of them, or not of that type.
    """
    if not isinstance(row, Mapping):
        raise DomainError(f"{where} is a JSON {type(row).__name__}; write one object a line.")
    if "text" in row:
        return row_string(row, "text", where)
    if "messages" in row:
        return _messages(row, "messages", where)
    if "prompt" in row and "completion" in row:
        return row_string(row, "prompt", where) + row_string(row, "completion", where)
    keys = ", ".join(sorted(row)) or "no key"
    raise DomainError(
        f"{where} has {keys}; it needs 'text', or 'messages', or 'prompt' and 'completion'."
    )


def row_question(row: Any, where: str) -> Document:
    """A row as a prompt to answer, or a text of which the beginning is one.

    Raises:
        DomainError: it has none of the keys, or another type under one.
    """
    if not isinstance(row, Mapping):
        raise DomainError(f"{where} is a JSON {type(row).__name__}; write one object a line.")
    if "messages" in row or "prompt" in row:
        return Document(text=row_prompt(row, where), where=where, whole=True)
    if "text" in row:
        return Document(text=row_string(row, "text", where), where=where)
    keys = ", ".join(sorted(row)) or "no key"
    raise DomainError(f"{where} has {keys}; it needs 'messages', or 'prompt', or 'text'.")


def row_prompt(row: Mapping[str, Any], where: str) -> str | Messages:
    """What a row asks: its messages without the answer at their end, or its prompt.

    Raises:
        DomainError: it is neither, or nobody asks anything.
    """
    key = "messages" if "messages" in row else "prompt"
    if key == "prompt" and not isinstance(row[key], list):
        return row_string(row, key, where)
    return _asked(_messages(row, key, where), where)


def _asked(messages: Messages, where: str) -> Messages:
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages:
        raise DomainError(f"{where} asks nothing; a chat needs a message of a user.")
    return messages


def column_question(row: Mapping[str, Any], columns: str | None, where: str) -> Document:
    """A table's row as a prompt; see :func:`column_text` and :func:`row_question`.

    Raises:
        DomainError: there is no such column, or it holds something else.
    """
    if columns is None:
        present = {name: value for name, value in row.items() if value is not None}
        if not set(_ASKING) & set(present):
            return Document(text="", where=where)
        found = row_question(present, where)
        return replace(found, text=_without_missing(found.text))
    text = column_text(row, columns, where)
    if isinstance(text, str):
        return Document(text=text, where=where)
    return Document(text=_asked(text, where) if text else text, where=where, whole=True)


def column_text(row: Mapping[str, Any], columns: str | None, where: str) -> str | Messages:
    """The text of a table's row, whose missing values are None and make an empty text.

    Args:
        row: column -> value.
        columns: a column of texts or of messages; or ``"A+B"``, whose texts are joined by a blank
            line; None: as in a JSONL row.
        where: of the row.

    Raises:
        DomainError: there is no such column, or it holds something else.
    """
    if columns is None:
        present = {name: value for name, value in row.items() if value is not None}
        if row_has_text(row) and not row_has_text(present):
            return ""
        return _without_missing(row_text(present, where))
    names = columns_of(columns, row)
    for name in names:
        if name not in row:
            raise DomainError(
                f"{where} has no column {name!r}; it has {', '.join(map(str, row)) or 'none'}."
            )
    if len(names) == 1 and isinstance(row[columns], list):
        return _without_missing(_messages(row, columns, where))
    texts = ["" if row[name] is None else row_string(row, name, where) for name in names]
    return "\n\n".join(text for text in texts if text)


def columns_of(columns: str, have: Container[str]) -> list[str]:
    """``A+B`` as its two names, unless a column is called so."""
    return [columns] if columns in have else columns.split("+")


def row_has_text(row: Iterable[str], *, prompts: bool = False) -> bool:
    """Whether one of the usual keys is among those of a row."""
    keys = set(row)
    if prompts:
        return bool(keys & set(_ASKING))
    return bool(keys & {"text", "messages"}) or {"prompt", "completion"} <= keys


def _without_missing(text: str | Messages) -> str | Messages:
    """Messages without the keys that only other rows of the table have: templates look for keys."""
    if isinstance(text, str):
        return text
    return tuple({key: value for key, value in m.items() if value is not None} for m in text)


def _messages(row: Mapping[str, Any], key: str, where: str) -> Messages:
    messages = row[key]
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and "role" in message for message in messages
    ):
        raise DomainError(f"{where}: {key!r} must be a list of objects with a 'role'.")
    return tuple(_encodable(message) for message in messages)


def row_string(row: Mapping[str, Any], key: str, where: str) -> str:
    """The text under a key of a row, fit for a tokenizer.

    Raises:
        DomainError: it is no text.
    """
    value = row[key]
    if not isinstance(value, str):
        raise DomainError(f"{where}: {key!r} is a {type(value).__name__}; it must be a string.")
    return str(_encodable(value))


def _encodable(value: Any) -> Any:
    """``value`` with every lone surrogate replaced: JSON can spell one, no tokenizer encodes it."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value

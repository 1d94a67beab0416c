"""A row of a file of questions, and the question that it is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from moeprune.core.tasks import Question
from moeprune.errors import UsageError
from moeprune.evaluate.tasks.keys import check_keys
from moeprune.evaluate.tasks.letters import LETTERS

KEYS = (
    "id",
    "domain",
    "question",
    "prompt",
    "text",
    "choices",
    "answer",
    "solution",
    "contexts",
    "continuation",
)
_ASKED = ("question", "prompt", "text")  # three words for one thing
_SURROGATE = re.compile("[\ud800-\udfff]")


def question_of(
    row: Mapping[str, Any], *, number: int, name: str, where: str, ignore: Sequence[str] = ()
) -> Question:
    """The question in a row.

    Args:
        row: of the file; null is as good as no key.
        number: of the line: its id where it has none.
        name: of the task: its domain where it has none.
        where: file and line, for messages.
        ignore: keys that may be there and mean nothing.

    Raises:
        UsageError: a key is unknown, missing or of another type, or the answer is none of the
            choices.
    """
    row = {key: value for key, value in row.items() if value is not None and key not in ignore}
    try:
        check_keys(row, KEYS, "the row")
    except UsageError as problem:
        raise UsageError(f"{where}: {problem} In a task file, ignore = [KEY] names more.") from None
    contexts = tuple(_list(row, "contexts", where))
    choices = tuple(_list(row, "choices", where)) or contexts
    shared: dict[str, Any] = {
        "id": _one(row, "id", where) or str(number),
        "domain": _one(row, "domain", where) or name,
        "text": _asked(row, where, needed=not contexts),
        "shown": _one(row, "solution", where),
    }
    try:
        if not choices:
            return Question(**shared, answers=_answers(row, where))
        return Question(
            **shared,
            choices=choices,
            right=_right(row, choices, where),
            contexts=contexts,
            continuation=_one(row, "continuation", where),
        )
    except UsageError as problem:
        said = str(problem)
        raise UsageError(said if said.startswith(where) else f"{where}: {said}") from None


def _asked(row: Mapping[str, Any], where: str, *, needed: bool) -> str:
    named = [key for key in _ASKED if key in row]
    if len(named) > 1:
        raise UsageError(f"{where} has {' and '.join(map(repr, named))}; leave all but one out.")
    text = _one(row, named[0], where) if named else ""
    if needed and not text.strip():
        raise UsageError(f"{where} asks nothing; it needs a 'question' (or 'prompt', or 'text').")
    return text


def _one(row: Mapping[str, Any], key: str, where: str) -> str:
    """The text under a key, a number as it is written; ``""``: there is no such key."""
    return "" if key not in row else _text(row[key], f"{where}: {key!r}")


def _list(row: Mapping[str, Any], key: str, where: str) -> list[str]:
    if key not in row:
        return []
    if not isinstance(row[key], list) or not row[key]:
        raise UsageError(f"{where}: {key!r} must be a list of texts.")
    return [_text(item, f"{where}: {key!r}") for item in row[key]]


def _text(value: Any, where: str) -> str:
    if isinstance(value, str):
        # JSON can spell half of a surrogate pair, which no tokenizer encodes.
        return _SURROGATE.sub("?", value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    raise UsageError(f"{where} holds {value!r:.60}; it must be a text.")


def _answers(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    value = row.get("answer")
    if value is None:
        return ()
    found: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, bool):
            found += (str(item), str(item).lower())
        else:
            found.append(_text(item, f"{where}: 'answer'"))
    if not found or any(not text.strip() for text in found):
        raise UsageError(f"{where}: 'answer' is empty, so no answer is right. Leave the row out.")
    return tuple(found)


def _right(row: Mapping[str, Any], choices: tuple[str, ...], where: str) -> int:
    """Which choice the row says is right: by its place, its letter or its text."""
    value = row.get("answer")
    if value is None:
        raise UsageError(f"{where} has choices and no 'answer'. Leave it out.")
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # the question checks that there is such a choice
    if isinstance(value, bool):
        places = [at for at, text in enumerate(choices) if text.lower() == str(value).lower()]
    else:
        said = _text(value, f"{where}: 'answer'")
        places = [at for at, text in enumerate(choices) if text == said]
        letter = said.strip().upper()
        if letter in LETTERS[: len(choices)] and len(letter) == 1:
            places = sorted({*places, LETTERS.index(letter)})
    if len(places) == 1:
        return places[0]
    what = f"{where}: 'answer' {value!r:.60}"
    if places:
        raise UsageError(f"{what} fits several choices. Give the place of the right one, from 0.")
    raise UsageError(
        f"{what} is none of the {len(choices)} choices. Give its place from 0, its letter, or its "
        "text."
    )

"""Values of published rows, checked. Messages say what is wrong; the caller says where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeprune.errors import UsageError
from moeprune.evaluate.tasks.letters import LETTERS

_NO_CSV = " (a .csv has no lists: take .parquet or .jsonl)"


def cloze(question: str) -> Mapping[str, Any]:
    """A protocol that compares the log-likelihoods of the choices, without shots.

    Args:
        question: its template.
    """
    return {"kind": "cloze", "question": question, "delimiter": " ", "shots": 0}


def text(row: Mapping[str, Any], column: str) -> str:
    """The text in a column, as it stands.

    Raises:
        UsageError: there is no such column, or something else in it.
    """
    value = _value(row, column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise UsageError(f"column {column!r} holds {value!r:.60}; it must be a text")
    return value


def texts(row: Mapping[str, Any], column: str) -> list[str]:
    """The list of texts in a column.

    Raises:
        UsageError: there is no such column, or something else in it.
    """
    value = _value(row, column)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    csv = _NO_CSV if isinstance(value, str) else ""
    raise UsageError(f"column {column!r} holds {value!r:.60}; it must be a list of texts{csv}")


def place(row: Mapping[str, Any], column: str, *, of: int, first: int = 0) -> int:
    """Which of ``of`` choices a column says is right, from 0 on: by its number or its letter.

    Args:
        row: as published.
        column: in it.
        of: choices.
        first: what the column calls the first of them, where it counts.

    Raises:
        UsageError: there is no such column, it names no choice, or the label is withheld.
    """
    value = labelled(row, column)
    said = str(value).strip().upper()
    if len(said) == 1 and said in LETTERS[:of]:
        return LETTERS.index(said)
    if not isinstance(value, bool) and said in {str(first + at) for at in range(of)}:
        return int(said) - first
    raise UsageError(f"column {column!r} holds {value!r:.60}, which is none of {of} choices")


def labelled(row: Mapping[str, Any], column: str) -> Any:
    """The label in a column.

    Raises:
        UsageError: there is no such column, or its labels are withheld, as in many test splits.
    """
    value = _value(row, column)
    if value is None or str(value).strip() in ("", "-1"):
        raise UsageError(f"column {column!r} is {value!r}: the labels of this split are withheld")
    return value


def labels(row: Mapping[str, Any]) -> tuple[list[str], int]:
    """The choices of ARC and OpenBookQA, and which of them ``answerKey`` names by its label.

    Raises:
        UsageError: a column is missing or holds something else, or there is no such label.
    """
    choices = _value(row, "choices")
    if not isinstance(choices, Mapping):
        csv = _NO_CSV if isinstance(choices, str) else ""
        raise UsageError(f"column 'choices' holds {choices!r:.60}; it must be text and label{csv}")
    found, names = texts(choices, "text"), texts(choices, "label")
    key = str(labelled(row, "answerKey")).strip()
    if len(found) != len(names) or names.count(key) != 1:
        raise UsageError(f"answerKey {key!r:.20} is not one of the labels {', '.join(names)}")
    return found, names.index(key)


def with_keys(row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, str]:
    """The columns that are there, as texts.

    Raises:
        UsageError: one of them holds no text.
    """
    return {column: text(row, column) for column in columns if row.get(column) is not None}


def _value(row: Mapping[str, Any], column: str) -> Any:
    if column not in row:
        have = ", ".join(map(str, row)) or "none"
        raise UsageError(f"there is no column {column!r}; there are: {have:.300}")
    return row[column]

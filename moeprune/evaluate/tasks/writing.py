"""A task file and its questions, as the bytes that are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moeprune.artefact import encodable
from moeprune.evaluate.tasks.files import SCHEMA


def toml_text(
    *, name: str, questions: str, shots_from: str | None, protocol: Mapping[str, Any], about: str
) -> str:
    """A task file.

    Args:
        name: of the task.
        questions: file of its questions, beside it.
        shots_from: file of its shots; None: there are none.
        protocol: keys of :class:`Protocol` in the order in which they are written.
        about: a line at the top.
    """
    files = {"questions": questions}
    if shots_from is not None:
        files["shots_from"] = shots_from
    body = {"schema": SCHEMA, "name": name, **files, **protocol}
    lines = (f"{key} = {_value(value)}\n" for key, value in body.items())
    return f"# {about}\n{''.join(lines)}"


def jsonl_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of a file of questions, their keys in the order in which they are given."""
    return "".join(f"{encodable(json.dumps(row, ensure_ascii=False))}\n" for row in rows)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for one sign that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)

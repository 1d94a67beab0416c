"""The two kinds of files that tasks are made of: TOML, and JSONL with one question a line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moeprune.artefact import check_schema, parse_json
from moeprune.errors import UsageError
from moeprune.kinds import kind_of

SCHEMA = "moeprune.task/1"

_INSTEAD = "name a task: a .toml or .jsonl file, or a folder of them."


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a task file, its schema checked and left out.

    Raises:
        UsageError: it is missing, is no TOML, or is something else than a task.
    """
    text = _text(path)
    try:
        body = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        said = str(problem).partition("\n")[0] or "nested too deep"
        kind = kind_of(path) or "a file"
        raise UsageError(f"{path} is {kind}, not TOML that can be read ({said}).") from None
    if "schema" not in body and "questions" in body:
        raise UsageError(f'{path} states no schema. Write schema = "{SCHEMA}" at its top.')
    check_schema(body, schema=SCHEMA, path=path, error=UsageError)
    return {key: value for key, value in body.items() if key != "schema"}


def read_jsonl(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line number and object of every line of a JSONL file that is not blank.

    Raises:
        UsageError: it is missing, is no text, or a line is no JSON object.
    """
    # Not splitlines(): JSON strings may hold U+2028 and its like, which end no line here.
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = parse_json(line)
        except json.JSONDecodeError as problem:
            reason = problem.msg
        except ValueError as problem:  # a key twice, a number of 5,000 digits
            reason = str(problem).partition(";")[0]
        else:
            if isinstance(row, dict):
                yield number, row
                continue
            reason = f"a {type(row).__name__}"
        kind = kind_of(path)
        but = "" if kind in (None, "rows of JSON") else f" {path.name} is {kind}; {_INSTEAD}"
        raise UsageError(f"{where} is not a question as a JSON object ({reason}).{but}") from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; {_INSTEAD}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is {kind_of(path) or 'a folder'}, not a file.") from None
    except UnicodeDecodeError as problem:
        kind = kind_of(path) or "a file"
        raise UsageError(
            f"{path} is {kind}, not UTF-8 text (byte {problem.start}); {_INSTEAD}"
        ) from None
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL
        reason = getattr(problem, "strerror", None) or problem
        raise UsageError(f"{path} cannot be read: {reason}.") from None

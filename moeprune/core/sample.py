"""An answer to one question, and the file that holds a line for each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from moeprune.artefact import canonical_json, parse_json
from moeprune.errors import RunError

Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question, asked once.

    Attributes:
        task: the task's name.
        domain: what it is reported under.
        id: of the question, unique in its task.
        seed: of the draws; 0 where nothing is drawn.
        input: sha256 of the token ids given to the model; ``""`` where they are not known.
        metrics: name -> value; accuracies are 0 or 1.
        correct: what paired tests join on; None where the task has no right and wrong.
        prediction: the answer that was read off, None: none was found.
        answer: a right one.
        truncated: a written answer used up its budget; None where nothing is written.
        tokens: that were written.
        details: what else the kind of task records.
    """

    task: str
    domain: str
    id: str
    seed: int = 0
    input: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    correct: bool | None = None
    prediction: str | None = None
    answer: str | None = None
    truncated: bool | None = None
    tokens: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What joins it with the same question asked of another model."""
        return self.task, self.id, self.seed

    def to_line(self) -> str:
        """One line of ``samples.jsonl``, without its end."""
        return canonical_json(asdict(self))

    @classmethod
    def from_json(cls, body: Any, where: str) -> Sample:
        """Of a parsed line.

        Raises:
            RunError: it is none, or a value is not of its type.
        """
        if not isinstance(body, dict):
            raise RunError(f"{where} is not a JSON object; it should be an answer to a question.")
        unknown = sorted(set(body) - set(_TYPES))
        if unknown:
            raise RunError(f"{where}: key {unknown[0]!r} is not known to this moeprune.")
        for name in ("task", "id"):
            if name not in body:
                raise RunError(f"{where} lacks {name!r}, by which answers are joined.")
        for name, value in body.items():
            if type(value) not in _TYPES[name]:
                raise RunError(f"{where}: {name} is {value!r}, which is not of its type.")
        for name in ("seed", "tokens"):
            if not 0 <= body.get(name, 0) < _MOST:
                raise RunError(f"{where}: {name} is {body[name]}, not a count.")
        for name, value in body.get("metrics", {}).items():
            if type(value) not in (int, float) or not -_MOST < value < _MOST:
                raise RunError(f"{where}: metric {name!r} is {value!r}, not a number.")
        if not sound(body.get("details", {})):
            raise RunError(f"{where}: details hold NaN or Infinity, or nest too deeply.")
        return cls(**{"domain": body["task"], **body})


_MOST = 1 << 62  # far from where sums of such numbers would overflow
_DEEPEST = 64
_TEXT: tuple[type, ...] = (str,)
_NONE = type(None)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "task": _TEXT,
    "domain": _TEXT,
    "id": _TEXT,
    "seed": (int,),
    "input": _TEXT,
    "metrics": (dict,),
    "correct": (bool, _NONE),
    "prediction": (str, _NONE),
    "answer": (str, _NONE),
    "truncated": (bool, _NONE),
    "tokens": (int,),
    "details": (dict,),
}


def sound(value: Any, depth: int = 0) -> bool:
    """Whether a parsed JSON value nests within reason and holds only numbers that JSON can say."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return depth < _DEEPEST and all(sound(item, depth + 1) for item in items)
    return not isinstance(value, float) or math.isfinite(value)


def read_samples(path: Path) -> Iterator[Sample]:
    """The answers in a JSONL file, line by line.

    Raises:
        RunError: it cannot be read, or a line is no answer.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise RunError(f"{path} does not exist; it holds the answers of a run.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise RunError(f"{path} cannot be read: {problem}.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            body = parse_json(line)
        except json.JSONDecodeError as problem:
            raise RunError(f"{where} is not JSON ({problem.msg}); the file is cut short.") from None
        except ValueError as problem:
            raise RunError(f"{where} is not JSON: {problem}.") from None
        yield Sample.from_json(body, where)

"""A run folder: what was asked of one variant of a model, and what it answered.

``run.json`` says what was run, on what, with which seeds and versions; ``samples.jsonl`` has a line
for each question. Two of them are joined by (task, id, seed).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from moeprune.artefact import (
    canonical_json,
    check_schema,
    parse_json,
    read_json,
    readable_json,
    write_bytes,
)
from moeprune.errors import RunError
from moeprune.kinds import wanted

SCHEMA = "moeprune.run/1"
RUN_FILE = "run.json"
SAMPLES_FILE = "samples.jsonl"

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
        if not _sound(body.get("details", {})):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one variant answered.

    Attributes:
        name: of the variant, as tables show it.
        model: ``name``, ``fingerprint`` and, of a MoE, its layers and experts.
        variant: what was done to it: ``plan`` (sha256, method, ratio, …) or nothing.
        tasks: name -> ``kind``, ``sha256``, ``protocol``, ``summary``.
        samples: sorted by the order of tasks, of questions, and by seed.
        probe: ``inputs`` and ``logits``, hashes that tell two variants apart; empty where unknown.
        guards: what the protocol guards found: ``name``, ``level``, ``task``, ``text``.
        provenance: dtype, device, seeds, versions.
    """

    name: str
    model: Mapping[str, Any] = field(default_factory=dict)
    variant: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    probe: Mapping[str, str] = field(default_factory=dict)
    guards: tuple[Mapping[str, Any], ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: set[Key] = set()
        for sample in self.samples:
            if sample.key in seen:
                task, id_, seed = sample.key
                raise RunError(
                    f"run {self.name!r} answers question {id_!r} of task {task!r} (seed {seed}) "
                    "twice, so it cannot be joined. Keep one of them."
                )
            seen.add(sample.key)

    @property
    def by_key(self) -> dict[Key, Sample]:
        """(task, id, seed) -> answer."""
        return {sample.key: sample for sample in self.samples}

    def of_task(self, task: str) -> tuple[Sample, ...]:
        """The answers of one task."""
        return tuple(sample for sample in self.samples if sample.task == task)

    def header(self) -> dict[str, Any]:
        """What ``run.json`` holds."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "model": dict(self.model),
            "variant": dict(self.variant),
            "tasks": {name: dict(task) for name, task in self.tasks.items()},
            "order": list(self.tasks),
            "probe": dict(self.probe),
            "guards": [dict(guard) for guard in self.guards],
            "provenance": dict(self.provenance),
        }

    def save(self, folder: Path) -> None:
        """Write both files into a folder that exists; ``run.json`` last.

        Raises:
            OutputError: they cannot be written.
        """
        write_bytes(folder / SAMPLES_FILE, _text(self.samples).encode())
        write_bytes(folder / RUN_FILE, readable_json(self.header()).encode())

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Read a run folder.

        Raises:
            RunError: it is none, or a file of it is malformed.
        """
        body = read_json(folder / RUN_FILE, error=RunError, what=wanted(SCHEMA))
        check_schema(body, schema=SCHEMA, path=folder / RUN_FILE, error=RunError)
        where = folder / RUN_FILE
        for name, kind in _HEADER.items():
            if not isinstance(body.get(name), kind):
                raise RunError(f"{where}: {name} is {body.get(name)!r}, which is not of its type.")
        _check_items(body, where)
        order: Sequence[str] = body["order"]
        if sorted(order) != sorted(body["tasks"]):
            raise RunError(f"{where}: order and tasks do not name the same tasks.")
        samples = tuple(read_samples(folder / SAMPLES_FILE))
        for sample in samples:
            if sample.task not in body["tasks"]:
                raise RunError(
                    f"{folder / SAMPLES_FILE} answers task {sample.task!r}, which {RUN_FILE} does "
                    "not name. The two files are not of one run."
                )
        return cls(
            name=body["name"],
            model=body["model"],
            variant=body["variant"],
            tasks={name: body["tasks"][name] for name in order},
            samples=samples,
            probe=body["probe"],
            guards=tuple(body["guards"]),
            provenance=body["provenance"],
        )


_HEADER: Mapping[str, type] = {
    "name": str,
    "model": dict,
    "variant": dict,
    "tasks": dict,
    "order": list,
    "probe": dict,
    "guards": list,
    "provenance": dict,
}


# what the values of a key of the header are
_ITEMS: Mapping[str, type] = {"tasks": dict, "order": str, "probe": str, "guards": dict}


def _check_items(body: Mapping[str, Any], where: Path) -> None:
    for name, kind in _ITEMS.items():
        held = body[name]
        for item in held.values() if isinstance(held, dict) else held:
            if not isinstance(item, kind):
                raise RunError(f"{where}: {name} holds {item!r}, which is not of its type.")
    if not _sound(body):
        raise RunError(f"{where} holds NaN or Infinity, or nests too deeply.")


def _sound(value: Any, depth: int = 0) -> bool:
    """Whether a parsed JSON value nests within reason and holds only numbers that JSON can say."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return depth < _DEEPEST and all(_sound(item, depth + 1) for item in items)
    return not isinstance(value, float) or math.isfinite(value)


def _text(samples: Iterable[Sample]) -> str:
    return "".join(f"{sample.to_line()}\n" for sample in samples)


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

"""What is asked of a model: questions, the protocol they are asked by, and both together, a task.

Types only; how a task file is read, rendered and scored is of ``evaluate/``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from moeprune.artefact import canonical_json, sha256_bytes
from moeprune.errors import UsageError

# Colder, logits over the temperature overflow.
_COLDEST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question.

    Attributes:
        id: unique in its task.
        domain: what it is reported under; shots are taken from the same domain where there are any.
        text: the question.
        choices: of which one is right; empty where the answer is written.
        right: index of the right choice; None where the answer is written.
        answers: texts any of which is right, where the answer is written.
        contexts: one text a choice, where the choices stand in the text (WinoGrande): each is
            followed by ``continuation``, and that is what is scored. ``choices`` names them.
        continuation: see ``contexts``.
        shown: what a shot shows as its answer (a worked solution), where that is not the answer.
    """

    id: str
    domain: str
    text: str
    choices: tuple[str, ...] = ()
    right: int | None = None
    answers: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    continuation: str = ""
    shown: str = ""

    def __post_init__(self) -> None:
        where = f"question {self.id!r}"
        if self.choices and (self.right is None or not 0 <= self.right < len(self.choices)):
            raise UsageError(
                f"{where}: choice {self.right} is right, and there are {len(self.choices)} "
                "(the first is 0). Correct it, or leave the question out."
            )
        if self.choices and len(self.choices) < 2:
            raise UsageError(f"{where} has one choice, so any answer is right. Give it two.")
        if self.contexts and len(self.contexts) != len(self.choices):
            raise UsageError(
                f"{where} has {len(self.contexts)} contexts and {len(self.choices)} choices. "
                "Give one context a choice."
            )
        if self.contexts and not self.continuation:
            raise UsageError(f"{where} has contexts and no continuation to score after them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How the questions of a task are asked: all that decides a model's input, and its reading.

    Templates are texts with the fields ``{question}``, ``{options}``, ``{domain}``, and, for an
    option, ``{letter}`` and ``{choice}``.

    Attributes:
        kind: a plug-in of ``evaluate/kinds``: letters, cloze, generate, …
        description: before the shots.
        question: a question, in a shot and when it is asked; ``""``: as its kind does.
        option: one line of ``{options}``.
        delimiter: between a question and its answer.
        separator: after each shot.
        shots: solved questions before each.
        shots_draw: ``"first"`` of the split, or ``"seeded"``: drawn by ``seed``, the same for all.
        chat_template: whether the tokenizer's is applied; None: not stated.
        thinking: whether the template is told to let the model think; None: not stated.
        effort: how much the template is told to let it think (gpt-oss: low, medium, high);
            None: as the template does untold.
        system: message before all others, where a chat template is applied.
        max_new_tokens: budget of a written answer.
        stop: texts at which a written answer ends; they are not part of it.
        extract: how the answer is found in what was written: ``exact``, ``last-number``,
            ``letter``, ``regex:PATTERN``.
        ignore_case: of letters, when answers are compared.
        temperature: 0: greedy.
        length: tokens that a window of a perplexity predicts; None: 2048. Never more than the model
            reads at once.
        limit: questions, drawn by ``seed``; None: all.
        seed: of all draws.
        expected: accuracy that the unpruned model is known to reach, in [0, 1].
    """

    kind: str
    description: str = ""
    question: str = ""
    option: str = "{letter}. {choice}"
    delimiter: str = " "
    separator: str = "\n\n"
    shots: int = 0
    shots_draw: str = "first"
    chat_template: bool | None = None
    thinking: bool | None = None
    effort: str | None = None
    system: str = ""
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    extract: str = "exact"
    ignore_case: bool = False
    temperature: float = 0.0
    length: int | None = None
    limit: int | None = None
    seed: int = 0
    expected: float | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("shots", 0),
            ("max_new_tokens", 1),
            ("length", 1),
            ("limit", 1),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} {value} must be at least {least}.")
        if self.temperature != 0 and not _COLDEST <= self.temperature < math.inf:
            raise UsageError(
                f"temperature {self.temperature} must be 0 (greedy), or {_COLDEST} or more."
            )
        if self.shots_draw not in ("first", "seeded"):
            raise UsageError(f"shots_draw {self.shots_draw!r} is neither 'first' nor 'seeded'.")
        if self.expected is not None and not 0 <= self.expected <= 1:
            raise UsageError(f"expected {self.expected} is no accuracy; give a number in [0, 1].")
        if "" in self.stop:
            raise UsageError("stop holds an empty text, at which every answer would end at once.")

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain types."""
        return {**asdict(self), "stop": list(self.stop)}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The keys that a task file may hold."""
        return tuple(item.name for item in fields(cls))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Questions and how they are asked.

    Attributes:
        name: as results are reported and joined.
        protocol: how they are asked.
        questions: in the order of their file.
        shots: solved questions that may stand before them.
        details: what else is to be recorded (where the questions come from).
    """

    name: str
    protocol: Protocol
    questions: tuple[Question, ...]
    shots: tuple[Question, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.questions:
            raise UsageError(f"task {self.name!r} has no question.")
        seen: set[str] = set()
        for question in self.questions:
            if question.id in seen:
                raise UsageError(
                    f"task {self.name!r} has two questions with the id {question.id!r}. Results "
                    "are joined by id: give each its own."
                )
            seen.add(question.id)
        if len(self.shots) < self.protocol.shots:
            raise UsageError(
                f"task {self.name!r} asks for {self.protocol.shots} shots and has "
                f"{len(self.shots)} solved questions. Name a file with more in shots_from."
            )

    @property
    def kind(self) -> str:
        """The plug-in that asks and reads it."""
        return self.protocol.kind

    @property
    def sha256(self) -> str:
        """Of the questions, the shots and the protocol: of all that decides the model's input."""
        body = {
            "protocol": self.protocol.to_json(),
            "questions": [asdict(question) for question in self.questions],
            "shots": [asdict(question) for question in self.shots],
        }
        return sha256_bytes(canonical_json(body).encode())

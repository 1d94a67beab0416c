"""What is asked: the questions of task files, texts for perplexity, tasks of lm-eval by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.core.chat import has_template, rendered
from moeprune.core.run import Key
from moeprune.core.tasks import Protocol, Question, Task
from moeprune.errors import UsageError
from moeprune.plugins import known

if TYPE_CHECKING:
    from moeprune.evaluate.requests import Request

HARNESS = "lm_eval:"
TUNING, HELD_OUT = "tuning", "held-out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """All that is asked of every variant.

    Attributes:
        tasks: ours, and the texts.
        requests: of each of them, in the order of its questions.
    """

    tasks: tuple[Task, ...]
    requests: tuple[tuple[Request, ...], ...]

    @property
    def keys(self) -> list[Key]:
        """(task, id, seed) of all that is ours, in order."""
        return [
            (task.name, *request.key)
            for task, requests in zip(self.tasks, self.requests, strict=True)
            for request in requests
        ]

    def fingerprint(self) -> dict[str, Any]:
        """What decides the answers: of every task, its own sha256 and that of its inputs."""
        from moeprune.evaluate.requests import inputs_sha256

        return {
            task.name: [task.sha256, inputs_sha256(requests)]
            for task, requests in zip(self.tasks, self.requests, strict=True)
        }


def split_names(tasks: str | Path | Sequence[str | Path]) -> tuple[list[str | Path], list[str]]:
    """Files and folders of tasks, and names of lm-eval's."""
    given = [tasks] if isinstance(tasks, str | Path) else list(tasks)
    harness = [str(name).removeprefix(HARNESS) for name in given if _of_harness(name)]
    if "" in harness:
        raise UsageError(f"{HARNESS} names no task. Write {HARNESS}NAME, for example lm_eval:piqa.")
    return [name for name in given if not _of_harness(name)], list(dict.fromkeys(harness))


def read_files(
    files: Sequence[str | Path], *, overrides: Mapping[str, Any], expected: Mapping[str, float]
) -> tuple[Task, ...]:
    """The tasks of files, with the accuracies that are expected of them.

    Raises:
        UsageError: see :func:`moeprune.evaluate.tasks.reading.read_tasks`.
    """
    from moeprune.evaluate.tasks.reading import read_tasks

    tasks = read_tasks(files, overrides=overrides) if files else ()
    return tuple(
        replace(task, protocol=replace(task.protocol, expected=expected[task.name]))
        if task.name in expected
        else task
        for task in tasks
    )


def check_expected(expected: Mapping[str, float], names: Sequence[str]) -> None:
    """Check that what is expected is of tasks that are asked.

    Raises:
        UsageError: it is not.
    """
    for name in expected:
        known(name, names, kind="task")


def texts(
    sources: Mapping[str, str] | Sequence[str] | None,
    *,
    split: str,
    tokenizer: Any,
    length: int,
    chat_template: bool | None,
) -> tuple[Task, ...]:
    """Texts whose perplexity is asked for: one task a split, one domain a text.

    Args:
        sources: name -> source, or ``NAME=SOURCE`` texts; see :mod:`moeprune.observe.sources`.
        split: what the texts were used for before, one of ``TUNING`` and ``HELD_OUT``.
        tokenizer: of the model; chats are written by its template.
        length: tokens of a window.
        chat_template: False: chats as the texts of their messages.

    Raises:
        DomainError: a source cannot be read.
        UsageError: an entry is not ``NAME=SOURCE``.
    """
    if not sources:
        return ()
    from moeprune.observe.domains import named_domains
    from moeprune.observe.sources import read_source

    questions = []
    for name, source in named_domains(sources).items():
        for number, document in enumerate(read_source(source).documents):
            questions.append(
                Question(
                    id=f"{name}/{number}",
                    domain=name,
                    text=_text(document, tokenizer, chat_template=chat_template is not False),
                )
            )
    protocol = Protocol(kind="perplexity", length=length, chat_template=chat_template)
    return (Task(name=split, protocol=protocol, questions=tuple(questions)),)


def exam(
    tasks: Sequence[Task],
    *,
    tokenizer: Any,
    max_length: int,
    seeds: int,
    chunks: int | None,
) -> Exam:
    """Everything that is ours, in token ids.

    Args:
        tasks: ours, and the texts.
        tokenizer: of the model.
        max_length: tokens that the model reads at once.
        seeds: how often a question is asked whose answer is drawn.
        chunks: windows of each text; None: all.

    Raises:
        UsageError: two tasks have one name, or a question does not fit.
    """
    from moeprune.evaluate.asking import requests_of
    from moeprune.evaluate.encoding import Encoder

    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two tasks are called {name!r}. Say name = '…' in a task file.")
    encoder = Encoder(tokenizer, max_length=max_length)
    found = []
    for task in tasks:
        first = task.protocol.seed
        requests = requests_of(
            task, encoder=encoder, tokenizer=tokenizer, seeds=range(first, first + seeds)
        )
        found.append(_first(requests, chunks) if task.kind == "perplexity" else requests)
    return Exam(tasks=tuple(tasks), requests=tuple(found))


def _of_harness(name: str | Path) -> bool:
    return isinstance(name, str) and name.startswith(HARNESS)


def _first(requests: Sequence[Request], chunks: int | None) -> tuple[Request, ...]:
    """The first windows of each text."""
    taken: dict[str, int] = {}
    found = []
    for request in requests:
        number = taken[request.question.domain] = taken.get(request.question.domain, 0) + 1
        if chunks is None or number <= chunks:
            found.append(request)
    return tuple(found)


def _text(document: Any, tokenizer: Any, *, chat_template: bool) -> str:
    if isinstance(document.text, str):
        return document.text
    if not chat_template or not has_template(tokenizer):
        raise UsageError(
            f"{document.where} holds 'messages', which only a chat template writes as one text. "
            "Pass --chat-template on, or give rows with 'text'."
        )
    return rendered(tokenizer, document.text)

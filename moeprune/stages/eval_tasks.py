"""What is asked: the questions of task files, texts for perplexity, tasks of lm-eval by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moeprune.core.sample import Key
from moeprune.core.tasks import Task
from moeprune.errors import UsageError
from moeprune.plugins import known
from moeprune.stages.eval_harness import Harness, read_harness_tasks
from moeprune.stages.eval_model import AskedModel
from moeprune.stages.eval_probes import PROBE, budget_of, probe_files, probes_of_texts
from moeprune.stages.eval_texts import text_tasks, windows
from moeprune.stages.eval_unused import check_used
from moeprune.stages.eval_words import HARNESS, EvalWords

if TYPE_CHECKING:
    from moeprune.evaluate.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """All that is asked of every variant.

    Attributes:
        tasks: ours, and the texts.
        requests: of each of them, in the order of its questions.
        harness: what lm-eval asks.
        length: tokens that the model reads at once.
    """

    tasks: tuple[Task, ...]
    requests: tuple[tuple[Request, ...], ...]
    harness: Harness
    length: int

    @property
    def keys(self) -> list[Key]:
        """(task, id, seed) of all that is ours, in order."""
        return [
            (task.name, *request.key)
            for task, requests in zip(self.tasks, self.requests, strict=True)
            for request in requests
        ]

    @property
    def questions(self) -> int:
        """How many there are, once a seed."""
        return sum(map(len, self.requests)) + self.harness.questions

    def fingerprint(self) -> dict[str, Any]:
        """What decides the answers: of every task, its own sha256 and that of its inputs."""
        from moeprune.evaluate.requests import inputs_sha256

        own = {
            f"task {task.name}": [task.sha256, inputs_sha256(requests)]
            for task, requests in zip(self.tasks, self.requests, strict=True)
        }
        return {**own, **{f"task {name}": mark for name, mark in self.harness.sha256.items()}}


def read_exam(
    words: EvalWords, asked: AskedModel, *, tokenizer: Any, trust_remote_code: bool
) -> Exam:
    """Everything in token ids.

    Args:
        words: of the user.
        asked: the model.
        tokenizer: of it.
        trust_remote_code: run code that comes with the checkpoint, or with a task of lm-eval.

    Raises:
        UsageError: a task is malformed or must state something, two have one name, or a question
            does not fit the model.
        DomainError: a text cannot be read.
    """
    from moeprune.evaluate.asking import requests_of
    from moeprune.evaluate.encoding import Encoder
    from moeprune.evaluate.tasks.explicit import check_explicit

    length = asked.max_length(tokenizer, trust_remote_code=trust_remote_code)
    own = _of_files(words, length=length)
    probes = probes_of_texts(words, tokenizer=tokenizer, length=length)
    for name in words.expected:
        names = [*(task.name for task in own), *(f"{HARNESS}{one}" for one in words.harness)]
        if not names:
            raise UsageError(f"--expect {name} is for tasks, and none is asked. Leave it out.")
        known(name, names, kind="task")
    for task in (*own, *(task for task, _ in probes)):
        check_explicit(task, tokenizer)
    tasks = [
        *own,
        *(task for task, _ in probes),
        *text_tasks(words, tokenizer),
    ]
    _check_names(task.name for task in tasks)
    drawing = any(task.protocol.temperature > 0 for task in tasks)
    if words.seeds > 1 and not drawing:
        raise UsageError(
            f"--seeds {words.seeds} repeats questions of task files whose answer is drawn, and "
            "there are none: greedy answers are the same each time, and lm-eval's tasks are asked "
            "once. Ask task files at a --temperature, or leave --seeds out."
        )
    harness = read_harness_tasks(
        words, tokenizer=tokenizer, length=length, trust_remote_code=trust_remote_code
    )
    check_used(
        words,
        files=own,
        probes=[task for task, _ in probes],
        harness=harness,
        chats=any(task.details.get("chats") for task in tasks),
    )
    encoder = Encoder(tokenizer, max_length=length)
    made = {task.name: requests for task, requests in probes}
    found = []
    for task in tasks:
        if task.name in made:
            found.append(made[task.name])
            continue
        first = task.protocol.seed
        seeds = range(first, first + words.seeds)
        requests = requests_of(task, encoder=encoder, tokenizer=tokenizer, seeds=seeds)
        found.append(windows(requests, words) if task.kind == "perplexity" else requests)
    return Exam(tasks=tuple(tasks), requests=tuple(found), harness=harness, length=length)


def _of_files(words: EvalWords, *, length: int) -> list[Task]:
    from moeprune.evaluate.tasks.reading import read_tasks

    tasks = list(read_tasks(words.files, overrides=words.stated)) if words.files else []
    files = probe_files(words)
    if files:
        budget = budget_of(words, length=length)
        stated = {**words.stated, "kind": PROBE, "max_new_tokens": budget}
        tasks += [
            replace(task, name=f"{PROBE}-{task.name}")
            for task in read_tasks(files, overrides=stated)
        ]
    return tasks


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen or name.startswith(HARNESS):
            raise UsageError(
                f"a second task would be called {name!r}, by which results are joined. Say "
                "name = '…' in its task file."
            )
        seen.add(name)

"""Task files: a ``.toml`` of our own, a ``.jsonl`` of questions, or a folder of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeprune.core.tasks import Protocol, Question, Task
from moeprune.errors import UsageError
from moeprune.evaluate.tasks.draws import needed, sample
from moeprune.evaluate.tasks.files import read_jsonl, read_toml
from moeprune.evaluate.tasks.fitting import fitted
from moeprune.evaluate.tasks.keys import OWN, check_keys, protocol_of, text_at
from moeprune.evaluate.tasks.rows import question_of
from moeprune.kinds import kind_of


def read_tasks(
    sources: str | Path | Sequence[str | Path], *, overrides: Mapping[str, Any] | None = None
) -> tuple[Task, ...]:
    """The tasks in files and folders, in that order.

    A ``.toml`` names its questions and states how they are asked. The questions of a bare
    ``.jsonl`` are asked by the protocol that fits their rows: by letters where they have choices,
    in words where they have an answer. Of a folder all task files are read, sorted by name, and all
    files of questions that none of them names.

    Args:
        sources: files and folders.
        overrides: keys of :class:`Protocol` that the command line states; they go before what a
            file states. None is not stated.

    Raises:
        UsageError: a file is missing or malformed, a key is unknown, two tasks have one name, or
            the questions do not fit the protocol.
    """
    stated = {key: value for key, value in (overrides or {}).items() if value is not None}
    check_keys(stated, Protocol.names(), "the command line")
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    paths = [path for source in given for path in _files(Path(source))]
    if not paths:
        raise UsageError("no task is named. Name a .toml or .jsonl file, or a folder of them.")
    found: dict[str, Path] = {}
    tasks = []
    for path in paths:
        task = _task(path, stated)
        if task.name in found:
            raise UsageError(
                f"{found[task.name]} and {path} are both called {task.name!r}, by which results "
                "are joined. Name one of them, or say name = '…' in a task file."
            )
        found[task.name] = path
        tasks.append(task)
    return tuple(tasks)


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    named: set[Path] = set()
    found = sorted(path for path in source.iterdir() if path.suffix in (".toml", ".jsonl"))
    for path in found:
        if path.suffix == ".toml":
            body = read_toml(path)
            for key in ("questions", "shots_from"):
                file = text_at(body, key, str(path))
                if file is not None:
                    named.add((path.parent / file).resolve())
    files = [path for path in found if path.suffix == ".toml" or path.resolve() not in named]
    if not files:
        kind = kind_of(source) or "a folder"
        raise UsageError(f"{source} is {kind} without a task. Put .toml or .jsonl files in it.")
    return files


def _task(path: Path, stated: Mapping[str, Any]) -> Task:
    if path.suffix == ".toml":
        return _of_toml(path, stated)
    if path.suffix == ".jsonl":
        return _made(path.stem, path, questions=path, shots=None, stated=stated, ignore=())
    kind = kind_of(path)
    none = "is no file" if path.exists() else "does not exist"
    what = f"is {kind}, not a task" if kind else none
    raise UsageError(f"{str(path)!r} {what}. Name a .toml or .jsonl file, or a folder of them.")


def _of_toml(path: Path, overrides: Mapping[str, Any]) -> Task:
    body = read_toml(path)
    check_keys(body, (*OWN, *Protocol.names()), str(path))
    name = text_at(body, "name", str(path)) or path.stem
    questions = text_at(body, "questions", str(path))
    if questions is None:
        raise UsageError(f"{path} names no questions. Write questions = 'FILE.jsonl'.")
    shots = text_at(body, "shots_from", str(path))
    for key, file in (("questions", questions), ("shots_from", shots)):
        if file is not None and not (path.parent / file).exists():
            raise UsageError(
                f"{path}: {key} = {file!r} does not exist beside it; correct the name."
            )
    ignore = body.get("ignore", [])
    if not isinstance(ignore, list) or not all(isinstance(key, str) for key in ignore):
        raise UsageError(f"{path}: ignore = {ignore!r} is not a list of keys of rows.")
    stated = {key: value for key, value in body.items() if key not in OWN}
    return _made(
        name,
        path,
        questions=path.parent / questions,
        shots=None if shots is None else path.parent / shots,
        stated={**stated, **overrides},
        ignore=ignore,
    )


def _made(
    name: str,
    path: Path,
    *,
    questions: Path,
    shots: Path | None,
    stated: Mapping[str, Any],
    ignore: Sequence[str],
) -> Task:
    read = _questions(questions, name, ignore)
    if not read:
        raise UsageError(f"{questions} holds no question. Write one a line.")
    protocol = protocol_of({"kind": _kind(read[0][0]), **stated}, str(path))
    if protocol.kind == "generate" and read[0][0].choices and "extract" not in stated:
        protocol = replace(protocol, extract="letter")
    asked = [fitted(question, protocol, where) for question, where in read]
    solved = [] if shots is None else _questions(shots, name, ignore)
    shown = [fitted(question, protocol, where, shot=True) for question, where in solved]
    details: dict[str, Any] = {"questions": questions.name, "of": len(asked)}
    if shots is not None:
        details["shots_from"] = shots.name
    check_ids(read)
    try:
        return Task(
            name=name,
            protocol=protocol,
            questions=sample(asked, limit=protocol.limit, seed=protocol.seed),
            shots=needed(shown, count=protocol.shots, draw=protocol.shots_draw, seed=protocol.seed),
            details=details,
        )
    except UsageError as problem:
        raise UsageError(f"{path}: {problem}") from None


def _kind(question: Question) -> str:
    if question.contexts:
        return "cloze"
    return "letters" if question.choices else "generate"


def _questions(path: Path, name: str, ignore: Sequence[str]) -> list[tuple[Question, str]]:
    found = []
    for number, row in read_jsonl(path):
        where = f"{path}, line {number}"
        made = question_of(row, number=number, name=name, where=where, ignore=ignore)
        found.append((made, where))
    return found


def check_ids(read: Sequence[tuple[Question, str]]) -> None:
    """Check that no two questions have one id.

    Args:
        read: questions, and the place of each for messages.

    Raises:
        UsageError: two have.
    """
    seen: dict[str, str] = {}
    for question, where in read:
        if question.id in seen:
            raise UsageError(
                f"{where} has the id {question.id!r} of {seen[question.id]}. Results are joined by "
                "id: give each its own."
            )
        seen[question.id] = where

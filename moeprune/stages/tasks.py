"""tasks: a public data set, as the Hub has it, into a task file and its questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from moeprune import plugins
from moeprune.artefact import write_bytes
from moeprune.core.tasks import Protocol, Question
from moeprune.errors import OutputError, UsageError
from moeprune.evaluate import layouts
from moeprune.evaluate.tasks.draws import sample
from moeprune.evaluate.tasks.writing import jsonl_text, toml_text
from moeprune.stages.task_rows import Converted, converted

NONE = "none"  # in the place of the shots


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTask:
    """A task that was written.

    Attributes:
        path: the task file.
        name: of the task.
        protocol: as the task file states it.
        questions: number of them.
        domains: domain -> number of its questions.
        shots: solved questions beside them.
        few: domains with fewer solved questions than are shown; they are shown others'.
    """

    path: Path
    name: str
    protocol: Protocol
    questions: int
    domains: Mapping[str, int]
    shots: int
    few: tuple[str, ...]


def tasks(
    layout: str,
    *,
    output: str | Path,
    questions: str | Sequence[str] | None = None,
    shots: str | Sequence[str] | None = None,
    name: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> WrittenTask:
    """Turn a data set in a public layout into ``NAME.toml``, ``NAME.jsonl``, ``NAME.shots.jsonl``.

    The same rows give the same bytes.

    Args:
        layout: a file of ``evaluate/layouts``: mmlu, ceval, gsm8k, …
        output: folder for the files; it is made where there is none.
        questions: tables of questions: a ``.jsonl``, ``.json``, ``.csv`` or ``.parquet`` file, or
            ``hf:ORG/DATASET[/CONFIG]:SPLIT``, or a folder of such files; ``NAME=SOURCE`` makes NAME
            their domain. Of several without a name, the config's or file's name is the domain where
            the rows have none.
            None: where the Hub has them.
        shots: tables of solved questions, likewise; ``"none"``: none. None: where the Hub has them,
            if the layout's protocol shows any.
        name: of the task; None: the layout's.
        limit: at most that many questions, drawn by ``seed``.
        seed: of the draw.
        overwrite: replace an earlier task of that name.

    Raises:
        UsageError: there is no such layout, or rows are not of it.
        DomainError: a source cannot be read.
        OutputError: the task is there already, or cannot be written.
    """
    module = plugins.load(layouts, layout)
    name = layout if name is None else name
    folder = Path(output)
    files = _files(folder, name, overwrite=overwrite)
    if limit is not None and limit < 1:
        raise UsageError(f"limit {limit} must be at least 1.")
    asked = _listed(questions, module.QUESTIONS)
    if not asked:
        raise UsageError(
            f"the Hub has the questions of {layout} in parts. Name one or more of them: "
            f"--questions {module.QUESTIONS}."
        )
    solved = _shots(module, layout, shots, own=questions is None)
    stated = dict(module.PROTOCOL)
    if not solved:
        stated["shots"] = 0
    protocol = Protocol(**stated)
    found = converted(asked, module, name=name, protocol=protocol)
    shown = converted(solved, module, name=name, protocol=protocol, shot=True)
    drawn = {one.id for one in sample([item.question for item in found], limit=limit, seed=seed)}
    kept = [item for item in found if item.question.id in drawn]
    few = _few([item.question for item in kept], [item.question for item in shown], protocol)
    _write(files, kept, shown, name=name, stated=stated, about=_about(module))
    return WrittenTask(
        path=files[0],
        name=name,
        protocol=protocol,
        questions=len(kept),
        domains=dict(Counter(item.question.domain for item in kept)),
        shots=len(shown),
        few=few,
    )


def _listed(given: str | Sequence[str] | None, own: str) -> list[str]:
    if given is None:
        return [own] if _whole(own) else []
    return [given] if isinstance(given, str) else list(given)


def _whole(source: str) -> bool:
    """Whether a layout says where all of a split is."""
    return source != "" and "{" not in source


def _shots(
    module: ModuleType, layout: str, given: str | Sequence[str] | None, *, own: bool
) -> list[str]:
    if given is not None:
        named = _listed(given, "")
        return [] if named == [NONE] else named
    count = module.PROTOCOL["shots"]
    if not count:
        return []
    if own and _whole(module.SHOTS):
        return [module.SHOTS]
    at = f" (the Hub has them at {module.SHOTS})" if module.SHOTS else ""
    raise UsageError(
        f"{layout} is asked after {count} solved questions. Name them with --shots SOURCE{at}, or "
        "ask without: --shots none."
    )


def _files(folder: Path, name: str, *, overwrite: bool) -> tuple[Path, Path, Path]:
    """Where the task, its questions and its shots go."""
    if not name.isprintable() or "/" in name or "\\" in name or not name.strip(". "):
        raise UsageError(f"a task cannot be called {name!r}, since files are. Name another.")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; name a folder for the task.")
    files = folder / f"{name}.toml", folder / f"{name}.jsonl", folder / f"{name}.shots.jsonl"
    there = [path for path in files if path.exists()]
    if there and not overwrite:
        raise OutputError(f"{there[0]} exists. Pass --overwrite, or give the task another --name.")
    return files


def _few(
    questions: Sequence[Question], shots: Sequence[Question], protocol: Protocol
) -> tuple[str, ...]:
    have = Counter(shot.domain for shot in shots)
    domains = dict.fromkeys(question.domain for question in questions)
    return tuple(domain for domain in domains if have[domain] < protocol.shots)


def _about(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0]


def _write(
    files: tuple[Path, Path, Path],
    kept: Sequence[Converted],
    shown: Sequence[Converted],
    *,
    name: str,
    stated: Mapping[str, Any],
    about: str,
) -> None:
    task, questions, shots = files
    text = toml_text(
        name=name,
        questions=questions.name,
        shots_from=shots.name if shown else None,
        protocol=stated,
        about=about,
    )
    try:
        task.parent.mkdir(parents=True, exist_ok=True)
        # An earlier task must not name the files of this one, nor files that nobody names be taken
        # for tasks of their own: its own file goes first, and this one's comes last.
        task.unlink(missing_ok=True)
        shots.unlink(missing_ok=True)
    except OSError as problem:
        raise OutputError(f"cannot write {task}: {problem.strerror or problem}.") from problem
    write_bytes(questions, jsonl_text(item.row for item in kept).encode())
    if shown:
        write_bytes(shots, jsonl_text(item.row for item in shown).encode())
    write_bytes(task, text.encode())

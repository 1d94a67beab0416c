"""What an evaluation has been answered so far, in a folder beside its output.

``OUTPUT.progress/`` holds what was asked for (``request.json``) and, of each variant and process,
one line a batch of answers. A line that a killed run left unfinished is dropped, and its batch is
asked again: whole batches, so that answers do not depend on where a run was stopped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
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
from moeprune.core.sample import Key, Sample
from moeprune.errors import MismatchError, MoePruneError, OutputError, RunError
from moeprune.stages.claim import progress_file
from moeprune.stages.eval_progress import ANSWERS, REQUEST, check_progress, remove_empty
from moeprune.stages.together import Work

SCHEMA = "moeprune.asked/1"
_NO_RESUME = "give --no-resume to begin anew"


class Answers:
    """The answers of one evaluation, by variant, kept as they come.

    Attributes:
        folder: where they are kept; None: nowhere.
    """

    def __init__(self, folder: Path | None, work: Work) -> None:
        self.folder = folder
        self._work = work
        self._request: dict[str, Any] = {}
        self._settled: dict[str, Any] = {}
        self._samples: dict[int, dict[Key, Sample]] = {}
        self._parts: dict[int, dict[str, tuple[Sample, ...]]] = {}
        self._whole: dict[Path, int] = {}

    @classmethod
    def open(
        cls, output: Path | None, request: Mapping[str, Any], *, work: Work, resume: bool
    ) -> Answers:
        """Go on with what an interrupted run has left, or begin anew.

        Args:
            output: of the evaluation; None: nothing is kept.
            request: option -> value, of everything that decides an answer.
            work: of this process; all of them come here.
            resume: False: what is there is not used, and goes.

        Raises:
            MismatchError: it is of another request.
            OutputError: the folder is of something else, or cannot be written.
            RunError: what is there cannot be read.
        """
        answers = cls(None if output is None else progress_file(output), work)
        answers._request = _as_read(request)
        if answers.folder is None:
            return answers
        check_progress(answers.folder)
        if not resume and work.crew.launch.local_rank == 0:
            shutil.rmtree(answers.folder, ignore_errors=True)
        work.crew.meet()
        answers._load(answers.folder)
        work.crew.meet()  # nobody writes before all have read
        try:
            answers.folder.mkdir(exist_ok=True)
        except OSError as problem:
            raise OutputError(f"cannot write {answers.folder}: {problem.strerror}.") from problem
        answers._save()
        return answers

    def settle(self, name: str, value: Any) -> Any:
        """What a value was when the run began; it is the given one from now on."""
        if name not in self._settled:
            self._settled[name] = _as_read(value)
            self._save()
        return self._settled[name]

    def settled(self, name: str) -> Any:
        """What was settled of that name, None where nothing was."""
        return self._settled.get(name)

    def of(self, variant: int) -> Mapping[Key, Sample]:
        """(task, id, seed) -> answer, of those that are there."""
        return self._samples.get(variant, {})

    @property
    def number(self) -> int:
        """Of all answers that are there."""
        parts = [samples for found in self._parts.values() for samples in found.values()]
        return sum(map(len, (*self._samples.values(), *parts)))

    def parts(self, variant: int) -> Mapping[str, tuple[Sample, ...]]:
        """Part of the questions -> its answers, of those that are kept as one."""
        return self._parts.get(variant, {})

    def add(self, variant: int, samples: Sequence[Sample], part: str | None = None) -> None:
        """Keep some answers; they are on the disk when this returns.

        Args:
            variant: its number.
            samples: of one batch, or of a part.
            part: name of what they are all the answers of.

        Raises:
            OutputError: they cannot be written.
        """
        self._take(variant, samples, part)
        if self.folder is None:
            return
        launch = self._work.crew.launch
        path = self.folder / f"{variant}-{launch.rank}-of-{launch.world}.jsonl"
        line = {"samples": [asdict(sample) for sample in samples], "part": part}
        try:
            with path.open("ab") as file:
                if path in self._whole:  # what a killed run left of its last line
                    file.truncate(self._whole.pop(path))
                file.write(canonical_json(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            reason = problem.strerror or problem
            raise OutputError(
                f"cannot write {path}: {reason}. What is answered is kept: make room, and the same "
                "command goes on."
            ) from problem

    def remove(self) -> None:
        """The result is written: what led to it is not needed any more."""
        self._work.crew.meet()
        if self.folder is not None and self._work.crew.launch.local_rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """A block before the first question: where it fails, a folder without an answer goes.

        Other processes of a launch are not waited for: this one may be the only one that fails.
        """
        done = False
        try:
            yield
            done = True
        finally:
            if not done and self.folder is not None and self._work.crew.launch.local_rank == 0:
                remove_empty(self.folder)

    def _take(self, variant: int, samples: Sequence[Sample], part: str | None) -> None:
        if part is not None:
            self._parts.setdefault(variant, {})[part] = tuple(samples)
        else:
            self._samples.setdefault(variant, {}).update((one.key, one) for one in samples)

    def _save(self) -> None:
        if self.folder is None or self._work.crew.launch.local_rank != 0:
            return
        body = {"schema": SCHEMA, "request": self._request, "settled": self._settled}
        write_bytes(self.folder / REQUEST, readable_json(body).encode())

    def _load(self, folder: Path) -> None:
        if not (folder / REQUEST).is_file():
            return
        way_out = f"Move it away, or {_NO_RESUME}."
        try:
            body = read_json(folder / REQUEST, error=RunError, what="what was asked for")
            check_schema(body, schema=SCHEMA, path=folder / REQUEST, error=RunError)
            begun, self._settled = dict(body["request"]), dict(body["settled"])
        except (MoePruneError, KeyError, TypeError, ValueError) as problem:
            raise RunError(f"{folder} cannot be gone on with: {problem} {way_out}") from problem
        # The model first: another one differs in more than its name.
        names = sorted(
            begun.keys() | self._request.keys(), key=lambda name: (name != "model", name)
        )
        for name in names:
            then, now = begun.get(name), self._request.get(name)
            if then != now:
                said = f" ({then!r} then, {now!r} now)"
                raise MismatchError(
                    f"{folder} was begun with another {name}{said if len(said) < 120 else ''}. Go "
                    f"on with the same, or {_NO_RESUME}."
                )
        for path in sorted(folder.iterdir()):
            named = ANSWERS.fullmatch(path.name)
            if named is not None:
                self._read(path, int(named[1]), way_out)

    def _read(self, path: Path, variant: int, way_out: str) -> None:
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            self._whole[path] = end
        for number, line in enumerate(data[:end].splitlines(), start=1):
            where = f"{path} line {number}"
            try:
                body = parse_json(line.decode())
                samples = [Sample.from_json(one, where) for one in body["samples"]]
                part = body["part"]
                self._take(variant, samples, None if part is None else str(part))
            except (KeyError, TypeError, AttributeError, ValueError) as problem:
                raise RunError(f"{where} cannot be read: {problem!r}. {way_out}") from problem
            except RunError as problem:
                raise RunError(f"{problem} {way_out}") from problem


def _as_read(value: Any) -> Any:
    """A value as it comes back from the file: a tuple is a list there."""
    return parse_json(canonical_json(value))

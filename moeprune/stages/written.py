"""What the model has written so far, in a file beside the output, so that no answer is lost.

JSON lines: the request first, then a line for each group of prompts that ran side by side. A line
that a killed run left unfinished is dropped, and its group is written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moeprune.artefact import canonical_json, parse_json, write_bytes
from moeprune.errors import MismatchError, OutputError, StoppedError

if TYPE_CHECKING:
    from moeprune.observe.generate import Completion

SCHEMA = "moeprune.written/1"


class Written:
    """Completions by domain and number of the prompt, kept in a file as they come."""

    def __init__(self, path: Path | None, request: Mapping[str, Any], *, resume: bool) -> None:
        """Go on with a file, or begin one.

        Args:
            path: of the file; None: nothing is kept.
            request: what decides the completions, plain JSON values.
            resume: False: begin anew.

        Raises:
            MismatchError: the file is of another request, or none of these files.
            OutputError: it cannot be written.
        """
        self._path = path
        self._found: dict[str, dict[int, Completion]] = {}
        if path is None:
            return
        head = canonical_json({"schema": SCHEMA, "request": request})
        if resume and path.exists():
            self._load(path, head)
        else:
            write_bytes(path, head.encode() + b"\n")

    def of(self, domain: str) -> Mapping[int, Completion]:
        """Number of the prompt -> its completion, of those that are there."""
        return self._found.get(domain, {})

    def add(self, domain: str, rows: Sequence[int], done: Sequence[Completion]) -> None:
        """Keep the completions of some prompts; they are on the disk when this returns.

        Raises:
            OutputError: they cannot be written.
        """
        self._found.setdefault(domain, {}).update(zip(rows, done, strict=True))
        if self._path is None:
            return
        line = {
            "domain": domain,
            "rows": list(rows),
            "ids": [one.ids.tolist() for one in done],
            "finished": [one.finished for one in done],
        }
        try:
            with self._path.open("ab") as file:
                file.write(canonical_json(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            reason = problem.strerror or problem
            raise OutputError(f"cannot write {self._path}: {reason}.") from problem

    def stopped(self, done: int, total: int) -> StoppedError:
        """What to raise where the job is asked to stop."""
        kept = (
            f"{self._path} holds what the model wrote: the same command goes on from there"
            if self._path is not None
            else "nothing is kept, as no output was named"
        )
        return StoppedError(f"stopped after {done:,} of {total:,} prompts; {kept}.")

    def remove(self) -> None:
        """Everything is in a file of its own: what led to it is not needed any more."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _load(self, path: Path, head: str) -> None:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        first, _, rest = whole.partition(b"\n")
        if first != head.encode():
            raise MismatchError(
                f"{path} was begun by a run of another model, or with other options or prompts. "
                "Give the same to go on, or --no-resume to begin anew."
            )
        try:
            for line in rest.splitlines():
                self._read(parse_json(line.decode()))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as problem:
            raise MismatchError(
                f"{path} cannot be read: {problem!r}. Give --no-resume to begin anew."
            ) from problem
        if len(whole) < len(data):
            write_bytes(path, whole)

    def _read(self, entry: Mapping[str, Any]) -> None:
        from moeprune.observe.generate import Completion

        done = [
            Completion(ids=np.asarray(ids, np.int32), finished=bool(finished))
            for ids, finished in zip(entry["ids"], entry["finished"], strict=True)
        ]
        rows = [int(row) for row in entry["rows"]]
        self._found.setdefault(entry["domain"], {}).update(zip(rows, done, strict=True))

"""Where the runs of an evaluation lie: looked at before it begins, written at its end."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from moeprune.artefact import write_bytes
from moeprune.checkpoint.staging import sync_folder
from moeprune.core.run import RUN_FILE, SAMPLES_FILE, Run
from moeprune.core.scan import SCAN_FILE
from moeprune.errors import OutputError
from moeprune.kinds import kind_of
from moeprune.observe.processes import Processes
from moeprune.stages.claim import claimed, progress_file
from moeprune.stages.eval_progress import REPLACED, RESULT, check_progress
from moeprune.stages.writable import check_name, check_room

_FILES = {RUN_FILE, SAMPLES_FILE}
_BESIDE = {SCAN_FILE}  # may lie beside run folders


def alone(crew: Processes, words: Mapping[str, object]) -> AbstractContextManager[None]:
    """No other launch may write the same runs meanwhile."""
    output = words.get("output")
    if not isinstance(output, str | Path) or not crew.launch.speaks:
        return nullcontext()
    path = Path(output)
    return claimed(path, progress_file(path), path, job="evaluation")


def check_output(output: Path, *, overwrite: bool) -> None:
    """Fail now, not after hours of answers.

    Args:
        output: the folder to make.
        overwrite: earlier runs may be there.

    Raises:
        OutputError: it exists (or is something else than runs, with ``overwrite``), or cannot be
            written.
    """
    for each in (output, progress_file(output)):
        check_name(each, output)
    if not output.name or output.name == "..":
        raise OutputError(f"{output} is no name for a new folder.")
    if os.path.lexists(output):
        if not _are_runs(output):
            kind = kind_of(output) or "no folder"
            raise OutputError(f"{output} is {kind} and would be lost. Name a new folder.")
        if not overwrite:
            raise OutputError(f"{output} exists; name another folder, or pass --overwrite.")
    check_room(output)
    check_progress(progress_file(output))


def write_runs(
    output: Path, runs: Iterable[Run], *, one: bool, beside: Mapping[str, bytes] | None = None
) -> None:
    """Write runs; the folder appears when all are complete.

    Args:
        output: its name; earlier runs of that name are replaced.
        runs: what to write.
        one: the folder is of the one run; else it has a folder a run, called as the run.
        beside: name -> bytes of files that the folder has, too.

    Raises:
        OutputError: the disk is full, or is not writable.
    """
    progress = progress_file(output)
    result, replaced = progress / RESULT, progress / REPLACED
    try:
        for left in (result, replaced):
            shutil.rmtree(left, ignore_errors=True)
        for run in runs:
            folder = result if one else result / run.name
            folder.mkdir(parents=True)
            run.save(folder)
            sync_folder(folder)
        for name, data in (beside or {}).items():
            write_bytes(result / name, data)
        sync_folder(result)
        if output.exists():
            output.rename(replaced)
        result.rename(output)
        sync_folder(output.parent)
    except OSError as problem:
        raise OutputError(f"cannot write {output}: {problem.strerror or problem}.") from problem
    shutil.rmtree(replaced, ignore_errors=True)


def _are_runs(path: Path) -> bool:
    """Whether a folder is a run, or has nothing but runs."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            items = [item for item in path.iterdir() if item.name not in _BESIDE]
            return _is_run(path) or (bool(items) and all(map(_is_run, items)))
    return False


def _is_run(path: Path) -> bool:
    return path.is_dir() and {item.name for item in path.iterdir()} == _FILES

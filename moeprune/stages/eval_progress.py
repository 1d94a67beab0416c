"""The folder beside its output in which an evaluation keeps what was answered so far."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from moeprune.errors import OutputError

REQUEST, RESULT, REPLACED = "request.json", "result", "replaced"
ANSWERS = re.compile(r"([0-9]+)-[0-9]+-of-[0-9]+\.jsonl")


def check_progress(folder: Path) -> None:
    """Check that what lies where progress is kept was left by an evaluation.

    Raises:
        OutputError: it was not.
    """
    if not os.path.lexists(folder):
        return
    if not folder.is_dir() or any(not _ours(name) for name in _names(folder)):
        raise OutputError(
            f"{folder} exists and is not what an interrupted evaluation leaves. Move it away, or "
            "name another output."
        )


def remove_empty(folder: Path) -> None:
    """Remove a folder that holds nothing but what was asked for."""
    with suppress(OSError, OutputError):
        if set(_names(folder)) <= {REQUEST}:
            # Moved first: no other process can add an answer to a folder without its request.
            away = folder.rename(folder.with_name(f".moeprune-{folder.name}"))
            shutil.rmtree(away, ignore_errors=True)


def _names(folder: Path) -> Iterator[str]:
    try:
        yield from (path.name for path in folder.iterdir())
    except OSError as problem:
        raise OutputError(f"cannot read {folder}: {problem.strerror}.") from problem


def _ours(name: str) -> bool:
    return (
        name in (REQUEST, RESULT, REPLACED)
        or name.startswith(".moeprune-")
        or ANSWERS.fullmatch(name) is not None
    )

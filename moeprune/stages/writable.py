"""Whether a long job's result can be written, asked before the job."""

from __future__ import annotations

import tempfile
from pathlib import Path

from moeprune.errors import OutputError
from moeprune.kinds import check_replaced


def check_writable(path: Path, *, overwrite: bool) -> None:
    """Fail now, not after an hour of forward passes.

    Raises:
        OutputError: it is there already (or is no stats, with ``overwrite``), or cannot be written.
    """
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder. Name a file.")
    if path.is_file() and not overwrite:
        raise OutputError(f"{path} exists; name another file, or pass --overwrite.")
    check_replaced(path, own="stats")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        reason = problem.strerror or problem
        raise OutputError(
            f"cannot write {path}: {reason} ({path.parent}). Name a file in an existing folder."
        ) from problem

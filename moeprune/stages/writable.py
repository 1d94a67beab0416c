"""Whether a long job's result can be written, asked before the job."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from moeprune.errors import OutputError
from moeprune.kinds import check_replaced


def check_writable(
    path: Path, *, overwrite: bool, own: str = "stats", beside: Iterable[Path] = ()
) -> None:
    """Fail now, not after an hour of forward passes.

    Args:
        path: of the result.
        overwrite: it may be there already.
        own: what it is, see :func:`moeprune.kinds.check_replaced`.
        beside: files that will lie beside it meanwhile.

    Raises:
        OutputError: it is there already (or is of another kind, with ``overwrite``), or cannot be
            written.
    """
    for each in (path, *beside):
        check_name(each, path)
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder. Name a file.")
    if path.is_file() and not overwrite:
        raise OutputError(f"{path} exists; name another file, or pass --overwrite.")
    check_replaced(path, own=own)
    check_room(path)


def check_room(path: Path) -> None:
    """Check that something can be made in the folder of ``path``.

    Raises:
        OutputError: it cannot.
    """
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        reason = problem.strerror or problem
        raise OutputError(
            f"cannot write {path}: {reason} ({path.parent}). Give a name in an existing folder."
        ) from problem


def check_name(path: Path, output: Path) -> None:
    """Names have at most so many bytes, and what lies beside a file is called after it.

    Args:
        path: to look at.
        output: the file or folder that it belongs to, for messages.

    Raises:
        OutputError: there can be no file of that name.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as problem:  # too long; or with a NUL
        reason = getattr(problem, "strerror", None) or problem
        name = "" if path == output else f" ({path.name})"
        raise OutputError(
            f"cannot write {output}: {reason}{name}. Give it a shorter or simpler name, in a "
            "folder that can be read."
        ) from problem

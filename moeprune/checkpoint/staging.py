"""A folder that appears under its name complete or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from moeprune.errors import OutputError

_MARKER = ".moeprune-partial"
_NO_FOLDER_SYNC = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP})
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def partial_path(output: Path) -> Path:
    """Where an unfinished ``output`` is built: its sibling ``<output>.partial``."""
    return output.with_name(output.name + ".partial")


def check_output(output: Path, *, source: Path) -> None:
    """Check that ``output`` can be made without touching anything that exists.

    Raises:
        OutputError: it exists, its parent does not, it and the source lie in one another, or
            what lies at its ``.partial`` was not left by an export.
    """
    if os.path.lexists(output):
        raise OutputError(f"{output} exists. Remove it, or name another folder.")
    if not output.name or output.name == "..":
        raise OutputError(f"{output} is no name for a new folder.")
    if not output.parent.is_dir():
        raise OutputError(f"cannot write {output}: folder {output.parent} does not exist.")
    real_source = source.resolve()
    for path in (output, partial_path(output)):
        real = path.resolve()
        if real.is_relative_to(real_source):
            raise OutputError(f"{path} is inside the model {source}. Name a folder outside it.")
        if real_source.is_relative_to(real):
            raise OutputError(f"the model {source} is inside {path}. Name another folder.")


@contextlib.contextmanager
def staged_folder(output: Path, *, needed: int) -> Iterator[Path]:
    """Give an empty ``<output>.partial``; it becomes ``output`` only if the block succeeds.

    On any failure, interrupts included, nothing stays. What a killed run left is removed by the
    next one. Files that the block writes are its own to fsync; the folders are fsynced here.

    Args:
        output: the final name; :func:`check_output` has been called.
        needed: bytes that will be written.

    Raises:
        OutputError: the disk is too small or full, or cannot be written.
    """
    partial = partial_path(output)
    free = 0
    try:
        free = shutil.disk_usage(output.parent).free
        _remove_leftover(partial)
        free = shutil.disk_usage(output.parent).free
        if free < needed:
            raise OutputError(_too_small(output, needed, free))
        partial.mkdir()
    except OSError as problem:
        raise OutputError(f"cannot write {output}: {problem.strerror or problem}.") from problem
    try:
        with (partial / _MARKER).open("wb") as marker:
            _lock(marker, output)
            yield partial
            if sys.platform == "win32":
                marker.close()  # an open file cannot be removed there
            (partial / _MARKER).unlink()
            for folder, _, _ in os.walk(partial):
                sync_folder(Path(folder))
            partial.rename(output)
        sync_folder(output.parent)
    except BaseException as problem:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(problem, OSError):
            full = problem.errno in _NO_SPACE
            reason = f"cannot write {output}: {problem.strerror or problem}."
            raise OutputError(_too_small(output, needed, free) if full else reason) from problem
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the file system can."""
    if sys.platform == "win32":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as problem:
        if problem.errno not in _NO_FOLDER_SYNC:
            raise


def _too_small(output: Path, needed: int, free: int) -> str:
    return (
        f"cannot write {output}: it needs {needed:,} bytes, the disk of {output.parent} had "
        f"{free:,} free. Free some space, or name a folder on another disk."
    )


def _remove_leftover(partial: Path) -> None:
    if not os.path.lexists(partial):
        return
    ours = partial.is_dir() and not partial.is_symlink()
    marker = partial / _MARKER
    if not ours or (any(partial.iterdir()) and not marker.is_file()):
        raise OutputError(
            f"{partial} exists and is not what an interrupted export leaves. Move it away."
        )
    if marker.is_file():
        with marker.open("rb") as file:
            _lock(file, partial)
    shutil.rmtree(partial)


def _lock(marker: BinaryIO, output: Path) -> None:
    """Hold the marker while this process lives: it tells a running export from a dead one."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(f"another export is writing {output}. Wait for it, or stop it.") from None
    except OSError:
        return  # a file system without locks: the leftover is taken for dead

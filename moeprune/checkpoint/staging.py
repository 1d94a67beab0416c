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

MARKER = ".moeprune-partial"  # in every unfinished folder, locked while its process lives
_STAGED = "checkpoint"  # lies beside the marker, becomes the output
_NO_FOLDER_SYNC = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP})
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def partial_path(output: Path) -> Path:
    """Where an unfinished ``output`` is built: inside its sibling ``<output>.partial``."""
    return output.with_name(output.name + ".partial")


def check_output(output: Path, *, source: Path | None) -> None:
    """Check that ``output`` can be made without touching anything that exists.

    Args:
        output: the folder to make.
        source: the model's folder; None where it is not on this disk.

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
    if source is None:
        return
    real_source = source.resolve()
    for path in (output, partial_path(output)):
        real = path.resolve()
        if real.is_relative_to(real_source):
            raise OutputError(f"{path} is inside the model {source}. Name a folder outside it.")
        if real_source.is_relative_to(real):
            raise OutputError(f"the model {source} is inside {path}. Name another folder.")


@contextlib.contextmanager
def claimed_folder(output: Path) -> Iterator[Path]:
    """Give an empty ``<output>.partial`` that is this process's own; it is removed at the end.

    Whoever holds it may call :func:`staged_folder` with ``claimed=True``, and keep files beside the
    folder which that makes. What a killed run left is removed by the next one.

    Args:
        output: the final name; :func:`check_output` has been called.

    Raises:
        OutputError: another export holds it, or the disk cannot be written.
    """
    partial = partial_path(output)
    try:
        marker = _claimed(partial, output)
    except OSError as problem:
        raise OutputError(_reason(problem, output)) from problem
    ours = True  # the folder, and ours to remove
    try:
        with marker:
            _clear(partial)
            yield partial
            _clear(partial)
            if sys.platform == "win32":
                marker.close()  # an open file cannot be removed there
            ours = False  # without a marker, another export may claim it
            (partial / MARKER).unlink()
        with contextlib.suppress(OSError):
            partial.rmdir()
    except BaseException as problem:
        if ours:
            shutil.rmtree(partial, ignore_errors=True)
        if isinstance(problem, OSError):
            raise OutputError(_reason(problem, output)) from problem
        raise


@contextlib.contextmanager
def staged_folder(output: Path, *, needed: int, claimed: bool = False) -> Iterator[Path]:
    """Give an empty folder in ``<output>.partial``; it becomes ``output`` if the block succeeds.

    On any failure, interrupts included, nothing stays. The marker lies beside the folder that is
    renamed, so ``output`` is complete and holds nothing of ours however the process ends. Files
    that the block writes are its own to fsync; the folders are fsynced here.

    Args:
        output: the final name; :func:`check_output` has been called.
        needed: bytes that will be written.
        claimed: the caller holds the :func:`claimed_folder` of ``output``.

    Raises:
        OutputError: the disk is too small or full, or cannot be written.
    """
    free = 0
    try:
        free = shutil.disk_usage(output.parent).free
        with contextlib.nullcontext() if claimed else claimed_folder(output):
            free = shutil.disk_usage(output.parent).free
            if free < needed:
                raise OutputError(_too_small(output, needed, free))
            folder = partial_path(output) / _STAGED
            folder.mkdir()
            try:
                yield folder
                for written, _, _ in os.walk(folder):
                    sync_folder(Path(written))
                folder.rename(output)
            except OSError as problem:
                raise OutputError(_reason(problem, output, needed, free)) from problem
        sync_folder(output.parent)
    except OSError as problem:
        raise OutputError(_reason(problem, output, needed, free)) from problem


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


def _reason(problem: OSError, output: Path, needed: int = 0, free: int = 0) -> str:
    if problem.errno in _NO_SPACE:
        return (
            _too_small(output, needed, free)
            if needed
            else (
                f"cannot write {output}: the disk of {output.parent} is full. Free some space, or "
                "name a folder on another disk."
            )
        )
    return f"cannot write {output}: {problem.strerror or problem}."


def _too_small(output: Path, needed: int, free: int) -> str:
    return (
        f"cannot write {output}: it needs {needed:,} bytes, the disk of {output.parent} had "
        f"{free:,} free{' but no room for more files' if free >= needed else ''}. "
        "Free some space, or name a folder on another disk."
    )


def _claimed(partial: Path, output: Path) -> BinaryIO:
    """Make ``partial``, or take over what a dead export left; returns its locked marker.

    Two exports may come here at once: whoever locks the marker owns the folder, the other leaves it
    alone.
    """
    with contextlib.suppress(FileExistsError):
        partial.mkdir()
    path = partial / MARKER
    ours = partial.is_dir() and not partial.is_symlink()
    if not ours or (any(partial.iterdir()) and not path.is_file()):
        raise OutputError(
            f"{partial} exists and is not what an interrupted export leaves. Move it away."
        )
    marker = path.open("ab")
    try:
        _lock(marker, output)
        # Its last owner may have finished, and renamed the folder, between our two steps.
        if not path.is_file() or not os.path.samestat(path.stat(), os.fstat(marker.fileno())):
            raise OutputError(_busy(output))
    except BaseException:
        marker.close()
        raise
    return marker


def _clear(partial: Path) -> None:
    """Remove what a dead export left, except the marker that is ours now."""
    for item in partial.iterdir():
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        elif item.name != MARKER:
            item.unlink()


def _lock(marker: BinaryIO, output: Path) -> None:
    """Hold the marker while this process lives: it tells a running export from a dead one."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(_busy(output)) from None
    except OSError:
        return  # a file system without locks: the leftover is taken for dead


def _busy(output: Path) -> str:
    return f"another export is writing {output}. Wait for it, or stop it."

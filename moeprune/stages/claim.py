"""One long job at a time for an output, and nothing left by those that were killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from moeprune.artefact import hidden_prefix
from moeprune.errors import OutputError


def progress_file(output: Path) -> Path:
    """Where what is measured is kept while it is measured.

    Raises:
        OutputError: the output has no name.
    """
    if not output.name:
        raise OutputError(f"{output} is no name for an output. Name a file or folder in it.")
    return output.with_name(output.name + ".progress")


@contextmanager
def claimed(output: Path, path: Path, *also: Path, job: str = "calibration") -> Iterator[None]:
    """Be the only process of this machine that writes a file or folder, while the block runs.

    What killed processes that wrote it have left half-written is removed first.

    Args:
        output: what the file leads to, for messages.
        path: of the file.
        also: files that only who writes ``path`` writes.
        job: what writes it, for messages.

    Raises:
        OutputError: another process is at it.
    """
    lock = _locked(path, output, job)
    try:
        if lock is not None:
            _sweep((path, *also))
        yield
    finally:
        if lock is not None:
            _lock_file(path).unlink(missing_ok=True)
            lock.close()


def _lock_file(path: Path) -> Path:
    target = Path(os.path.realpath(path))
    return target.parent / f"{hidden_prefix(target)}lock"


def _locked(path: Path, output: Path, job: str) -> BinaryIO | None:
    """The lock, held; None where there are no locks, or the folder cannot be written."""
    if sys.platform == "win32":
        return None
    import fcntl

    where = _lock_file(path)
    while True:
        try:
            lock = where.open("ab")
        except (OSError, ValueError):
            return None  # said when the output is looked at
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock.fileno()).st_ino == where.stat().st_ino:
                return lock
        except BlockingIOError:
            lock.close()
            raise OutputError(
                f"another {job} is writing {output}. Wait for it, stop it, or name another output."
            ) from None
        except FileNotFoundError:
            pass  # its holder has just removed it
        except OSError:  # a file system without locks
            where.unlink(missing_ok=True)
            lock.close()
            return None
        lock.close()


def _sweep(paths: Sequence[Path]) -> None:
    for path in paths:
        target = Path(os.path.realpath(path))
        prefix, lock = hidden_prefix(target), _lock_file(path)
        with contextlib.suppress(OSError):  # what cannot be removed is in nobody's way
            for other in target.parent.iterdir():
                if not other.name.startswith(prefix) or other == lock:
                    continue
                if other.is_dir():
                    shutil.rmtree(other, ignore_errors=True)
                else:
                    other.unlink(missing_ok=True)

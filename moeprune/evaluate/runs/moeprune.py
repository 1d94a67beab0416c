"""Our own run folders, which 'moeprune eval' writes."""

from __future__ import annotations

from pathlib import Path

from moeprune.core.run import RUN_FILE, SAMPLES_FILE, Run


def holds(path: Path) -> bool:
    """Whether it is a run folder, or one of its two files."""
    if path.name in (RUN_FILE, SAMPLES_FILE) and path.is_file():
        path = path.parent
    return (path / RUN_FILE).is_file()


def read(path: Path) -> Run:
    """Read it.

    Raises:
        RunError: a file of it is malformed or missing.
    """
    return Run.load(path if path.is_dir() else path.parent)

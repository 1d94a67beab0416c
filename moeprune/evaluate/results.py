"""Results of whatever was evaluated, as runs: the format is found by looking."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

from moeprune import plugins
from moeprune.core.run import Run
from moeprune.errors import RunError
from moeprune.evaluate import runs
from moeprune.kinds import kind_of

_DEEPEST = 3  # folders below the named one
_WANTED = (
    "a run folder, which 'moeprune eval' writes, a folder of such, or what 'lm_eval --log_samples' "
    "writes"
)


def read_results(path: Path) -> tuple[tuple[Path, Run], ...]:
    """The runs under a name, each with where it lies: one, or all of a folder, by name.

    Numbers in names are ordered as numbers: ``k1-1_k2-2`` before ``k1-1_k2-16``.

    Raises:
        RunError: there is none, or a file is malformed.
    """
    found = tuple((place, reader.read(place)) for place, reader in _readers(path, _DEEPEST))
    if found:
        return found
    if not path.exists():
        raise RunError(f"{path} does not exist; it should be {_WANTED}.")
    raise RunError(f"{path} is {kind_of(path) or 'no folder'}; it should be {_WANTED}.")


def _readers(path: Path, depth: int) -> list[tuple[Path, ModuleType]]:
    for name in plugins.names(runs):
        reader = plugins.load(runs, name)
        if reader.holds(path):
            return [(path, reader)]
    if not depth or not path.is_dir():
        return []
    try:
        inside = sorted((item for item in path.iterdir() if item.is_dir()), key=_natural)
    except OSError as problem:
        raise RunError(f"{path} cannot be read: {problem.strerror or problem}.") from None
    return [found for item in inside for found in _readers(item, depth - 1)]


def _natural(path: Path) -> tuple[list[str | float], str]:
    """Text and numbers in turn; names that differ but in leading zeros, as text."""
    parts = re.split(r"([0-9]+(?:\.[0-9]+)?)", path.name)
    return [float(part) if at % 2 else part for at, part in enumerate(parts)], path.name

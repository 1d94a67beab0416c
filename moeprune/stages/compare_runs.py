"""Which runs a comparison is of: files and folders to a base and named variants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moeprune.core.run import Run
from moeprune.errors import UsageError
from moeprune.evaluate.results import read_results

Source = str | Path | Run


@dataclass(frozen=True, slots=True)
class Compared:
    """What is compared with what.

    Attributes:
        base: the run that the others are measured against.
        variants: the others, names differ.
        same: of each, whether it is the base itself.
    """

    base: Run
    variants: tuple[Run, ...]
    same: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    place: Path | None  # where it lies; None: in memory
    shown: str  # as it was named
    run: Run
    listed: bool  # one of a folder of several


def compared(base: Source, variants: Sequence[Source]) -> Compared:
    """Read what was named.

    Args:
        base: a run, or where it lies; with no variants, a folder of runs one of which is the model
            as it is. ``NAME=PATH`` gives it another name.
        variants: the same; a folder of several runs stands for all of them but the base.

    Raises:
        UsageError: the base is not one run, or nothing is left to compare.
        RunError: a run cannot be read.
    """
    first = _read(base)
    if len(first) > 1 and not variants:
        first, rest = _parted(first, str(base))
    elif len(first) > 1:
        names = ", ".join(found.shown for found in first)
        raise UsageError(f"{base} holds {len(first)} runs ({names}); name the base among them.")
    else:
        rest = [found for source in variants for found in _read(source)]
        rest = [found for found in rest if not (found.listed and _same(found, first[0]))]
    if not rest:
        raise UsageError(f"nothing to compare with {base}; name at least one other run.")
    every = _named([first[0], *rest])
    return Compared(
        base=every[0],
        variants=tuple(every[1:]),
        same=tuple(_same(found, first[0]) for found in rest),
    )


def _read(source: Source) -> list[_Found]:
    if isinstance(source, Run):
        return [_Found(None, source.name, source, listed=False)]
    name, path = "", Path(source)
    if not path.exists() and "=" in str(source):
        name, _, rest = str(source).partition("=")
        path = Path(rest)
    runs = read_results(path)
    if name and len(runs) > 1:
        raise UsageError(f"{path} holds {len(runs)} runs, and {name!r} names one. Leave it out.")
    return [
        _Found(place, str(place), replace(run, name=name) if name else run, len(runs) > 1)
        for place, run in runs
    ]


def _parted(found: Sequence[_Found], where: str) -> tuple[list[_Found], list[_Found]]:
    """The one run to whose model nothing was done, and the others."""
    bare = [one for one in found if not one.run.variant]
    if len(bare) != 1:
        names = ", ".join(one.shown for one in found)
        raise UsageError(
            f"{where} holds {len(found)} runs ({names}), of which {len(bare)} are of the model as "
            "it is, so the base is not clear. Name it first, then the others."
        )
    return bare, [one for one in found if one is not bare[0]]


def _same(one: _Found, other: _Found) -> bool:
    if one.place is None or other.place is None:
        return one.run is other.run
    return one.place.resolve() == other.place.resolve()


def _named(found: Sequence[_Found]) -> list[Run]:
    """With names that differ: where two are alike, by where they lie, or else with a number."""
    counts = Counter(one.run.name for one in found)
    taken: set[str] = set()
    runs = []
    for one in found:
        name = one.run.name if counts[one.run.name] == 1 else one.shown
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name} ({number})", number + 1
        taken.add(unique)
        runs.append(one.run if unique == one.run.name else replace(one.run, name=unique))
    return runs

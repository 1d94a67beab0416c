"""How long jobs report progress: a callback the command line draws, nothing in library use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of a long job.

    Attributes:
        stage: what runs, in a word or two ("calibrate math").
        done: units done.
        total: units in all, or 0 where unknown.
        unit: ``"tokens"``, ``"bytes"``, …
        note: what else there is to know now ("generation 3 of 50, best 0.8123").
    """

    stage: str
    done: int
    total: int
    unit: str
    note: str = ""


OnProgress = Callable[[Progress], None]


def ignore(_: Progress) -> None:
    """Report nowhere."""


def unheard(_text: str) -> None:
    """Tell nobody."""

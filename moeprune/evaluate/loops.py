"""Repetition in written tokens: does the end go round in a circle, and how much of it is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LONGEST_PERIOD = 64
LEAST_REPEATS = 3
LEAST_COVERED = 32
"""Tokens that a loop must cover, so that a row of dashes or ``ha ha ha`` is none."""


@dataclass(frozen=True, slots=True)
class Loop:
    """How the tokens end.

    Attributes:
        period: tokens after which they repeat, the smallest.
        covered: tokens at the end that repeat so, a part of a period at their beginning included.
    """

    period: int
    covered: int


def loop_of(ids: Sequence[int]) -> Loop | None:
    """The loop that the tokens end in, or None.

    The last ``covered`` tokens have period p (each equals the one p before it), p is at most
    ``LONGEST_PERIOD``, and they hold ``LEAST_REPEATS`` periods and ``LEAST_COVERED`` tokens. Takes
    time in proportion to the number of tokens.

    Args:
        ids: what was written, without what it was asked.
    """
    ids_T = np.asarray(ids, np.int64)
    for period in range(1, min(LONGEST_PERIOD, ids_T.size // LEAST_REPEATS) + 1):
        other = np.flatnonzero(ids_T[period:] != ids_T[:-period])
        # Where the last token stands that differs from the one a period before it, plus one.
        start = int(other[-1]) + 1 if other.size else 0
        covered = int(ids_T.size) - start
        if covered >= max(LEAST_COVERED, LEAST_REPEATS * period):
            return Loop(period, covered)
    return None


def distinct_share(ids: Sequence[int], n: int) -> float:
    """Different runs of ``n`` tokens over all of them; 1 where there are fewer tokens than that."""
    grams = [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0

"""Loops against brute force over every period and every beginning."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moeprune.evaluate.loops import Loop, distinct_share, loop_of


def slow(ids: Sequence[int]) -> Loop | None:
    for period in range(1, 65):
        for start in range(len(ids)):
            tail = list(ids[start:])
            whole = (tail[:period] * (len(tail) // period + 1))[: len(tail)]
            if tail == whole and len(tail) >= max(32, 3 * period):
                return Loop(period, len(tail))
    return None


@st.composite
def endings(draw: st.DrawFn) -> list[int]:
    """Anything, then perhaps a cycle of any length, cut anywhere, perhaps with a slip in it."""
    token = st.integers(0, 3)
    head = draw(st.lists(token, max_size=40))
    cycle = draw(st.lists(token, min_size=1, max_size=70))
    length = draw(st.integers(0, 230))
    tail = (cycle * (length // len(cycle) + 1))[:length]
    if tail and draw(st.booleans()):
        tail[draw(st.integers(0, length - 1))] = 9
    return head + tail


@settings(max_examples=300, deadline=None)
@given(ids=endings())
@example(ids=[7] * 31)
@example(ids=[7] * 32)
@example(ids=[*range(64)] * 3)
@example(ids=[*range(65)] * 4)
@example(ids=[*range(64)] * 2 + [*range(63)])
@example(ids=[])
def test_loops_are_what_brute_force_finds(ids: list[int]) -> None:
    assert loop_of(ids) == slow(ids)


def test_a_period_is_the_smallest_and_covers_a_part_of_one() -> None:
    assert loop_of([5, 6, *[1, 2, 3] * 12, 1]) == Loop(3, 37)
    assert loop_of([1, 2, 3] * 12 + [9]) is None


@pytest.mark.parametrize(
    ("ids", "share"), [([], 1.0), ([1, 2, 3], 1.0), ([1] * 7, 0.25), ([1, 2, 1, 2, 1], 1.0)]
)
def test_share_of_different_runs(ids: list[int], share: float) -> None:
    assert distinct_share(ids, 4) == share

"""Lengths of completions: percentiles as sorting says, sums over shards, warnings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.completions import Completions, completion_warnings, completions_of
from moeprune.errors import StatsError

ENDS = st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=60)


@given(ends=ENDS, percent=st.integers(1, 100))
def test_percentiles_are_those_of_the_sorted_lengths(
    ends: list[tuple[int, bool]], percent: int
) -> None:
    found = Completions.of(ends)
    lengths = sorted(length for length, _ in ends)
    rank = math.ceil(percent * len(lengths) / 100)  # nearest rank
    assert found.percentile(percent) == (lengths[rank - 1] if lengths else 0)
    assert found.number == len(ends)
    assert found.cut_share == sum(not done for _, done in ends) / max(1, len(ends))


@given(first=ENDS, second=ENDS)
def test_parts_add_up_to_the_whole(
    first: list[tuple[int, bool]], second: list[tuple[int, bool]]
) -> None:
    whole = Completions.of([*first, *second])
    assert Completions.of(first).plus(Completions.of(second)) == whole
    assert Completions.from_json(whole.to_json()) == whole


def test_a_warning_where_the_budget_is_near() -> None:
    short = Completions.of([(10, True)] * 99 + [(100, False)])
    assert short.warning("d", 100) is None  # 1 % may be as long as it likes
    assert short.warning("d", None) is not None
    long = Completions.of([(10, True)] * 90 + [(92, True)] * 10)
    assert long.warning("d", None) is None
    words = long.warning("d", 100)
    assert words is not None and "up to 92 tokens of 100" in words and "0.0%" in words
    assert long.warning("d", 103) is None
    assert Completions.of([]).warning("d", 5) is None
    provenance = {"completions": {"d": long.to_json()}, "max_new_tokens": 100}
    assert completion_warnings(provenance) == (words,)
    for broken in ([], {"d": 3}, {"d": {"cut": 1}}, {"d": {"cut": "x", "lengths": []}}):
        with pytest.raises(StatsError, match="calibrate again"):
            completions_of({"completions": broken})
    assert completions_of({}) == {} and completion_warnings({}) == ()

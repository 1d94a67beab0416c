from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.checkpoint import readahead
from moeprune.checkpoint.readahead import ReadAhead

RANGES = st.lists(st.integers(0, 300), unique=True, max_size=12).map(
    lambda cuts: list(zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False))
)


@given(ranges=RANGES, piece=st.integers(1, 40), ahead=st.integers(1, 90))
def test_announces_every_byte_once_before_it_is_read_and_no_other(
    tmp_path_factory: pytest.TempPathFactory,
    ranges: list[tuple[int, int]],
    piece: int,
    ahead: int,
) -> None:
    path = tmp_path_factory.mktemp("ahead") / "x"
    path.write_bytes(bytes(400))
    told: list[int] = []

    def advise(_: int, start: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            told.extend(range(start, start + length))

    with pytest.MonkeyPatch.context() as patch, path.open("rb", buffering=0) as source:
        patch.setattr(os, "posix_fadvise", advise)
        patch.setattr(readahead, "_PIECE", piece)
        patch.setattr(readahead, "_AHEAD", ahead)
        reader = ReadAhead(source, ranges)
        for start, end in ranges:
            for position in range(start, end):
                reader.reached(position)
                assert position in told
                assert max(told) < position + ahead + piece  # not the whole file at once
    assert told == [position for start, end in ranges for position in range(start, end)]


def test_systems_without_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readahead, "_KNOWN", False)
    monkeypatch.delattr(os, "posix_fadvise")
    (tmp_path / "x").write_bytes(b"abc")
    with (tmp_path / "x").open("rb", buffering=0) as source:
        ReadAhead(source, [(0, 3)]).reached(0)
        assert source.read() == b"abc"

"""The file for what waits: pieces come back whole, places are used again, a full disk is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.errors import OutputError
from moeprune.observe.streamed.spill import Spill, spill


@given(
    steps=st.lists(st.one_of(st.binary(min_size=1, max_size=40), st.integers(0, 9)), max_size=60)
)
def test_pieces_come_back(
    steps: list[bytes | int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with spill(tmp_path_factory.getbasetemp()) as file:
        kept: list[tuple[int, bytes]] = []
        for step in steps:
            if isinstance(step, bytes):
                kept.append((file.put(memoryview(step)), step))
            elif step < len(kept):
                at, want = kept.pop(step)
                room = bytearray(len(want))
                file.take(at, memoryview(room))
                assert room == want


def test_a_place_is_used_again_and_the_file_has_no_name(tmp_path: Path) -> None:
    with spill(tmp_path) as file:
        for _ in range(100):
            at = file.put(memoryview(b"12345678"))
            other = file.put(memoryview(b"abc"))
            assert {at, other} == {0, 8}
            file.take(at, memoryview(bytearray(8)))
            file.take(other, memoryview(bytearray(3)))
        assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path) -> None:
    with Path("/dev/full").open("r+b", buffering=0) as full:
        file = Spill(full, tmp_path)
        with pytest.raises(OutputError, match=r"cannot hold what waits .*: No space left"):
            file.put(memoryview(b"12345678"))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no file can be made in"), spill(tmp_path / "none"):
        pass

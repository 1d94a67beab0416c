from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_safetensors import noise

from moeprune.checkpoint import copying
from moeprune.checkpoint.copying import Copier
from moeprune.checkpoint.edits import RowRuns
from moeprune.errors import CheckpointError

WAYS = ("kernel", "refused", "zero", "short", "absent")


def use(way: str, patch: pytest.MonkeyPatch) -> None:
    """Make ``os.copy_file_range`` behave as on some system."""
    real = os.copy_file_range

    def refused(*_: int) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def short(source: int, target: int, count: int, start: int) -> int:
        return real(source, target, max(1, count // 2), start)

    if way == "absent":
        patch.delattr(os, "copy_file_range")
    elif way != "kernel":
        new = {"refused": refused, "zero": lambda *_: 0, "short": short}[way]
        patch.setattr(os, "copy_file_range", new)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(WAYS), st.sampled_from([1, 64, 1 << 20]))
def test_rows_equal_slices_in_every_way(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, way: str, buffer: int
) -> None:
    row_bytes, rows = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 6))
    cuts = sorted(data.draw(st.sets(st.integers(0, row_bytes), max_size=8)))
    runs = tuple(zip(cuts[::2], cuts[1::2], strict=False))
    lead = data.draw(st.integers(0, 9))
    content = noise(1, lead + rows * row_bytes + 5)
    folder = tmp_path_factory.mktemp("rows")
    (folder / "source").write_bytes(content)
    reported: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        use(way, patch)
        patch.setattr(copying, "_BUFFER_BYTES", buffer)
        patch.setattr(copying, "_SHORT_RUN", data.draw(st.sampled_from([0, 4, 1 << 20])))
        with (
            (folder / "source").open("rb", buffering=0) as source,
            (folder / "target").open("wb", buffering=0) as target,
        ):
            copier = Copier(target, reported.append)
            copier.write(b"head")
            copier.copy_rows(source, lead, RowRuns(rows, row_bytes, runs))
            copier.copy(source, 0, lead)
    expected = b"".join(
        content[lead + row * row_bytes + a : lead + row * row_bytes + b]
        for row in range(rows)
        for a, b in runs
    )
    assert (folder / "target").read_bytes() == b"head" + expected + content[:lead]
    assert sum(reported) == len(expected) + lead


@pytest.mark.parametrize("way", WAYS)
def test_a_source_that_ends_early_is_one_line(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(b"12345")
    use(way, monkeypatch)
    with (
        (tmp_path / "source").open("rb", buffering=0) as source,
        (tmp_path / "target").open("wb", buffering=0) as target,
        pytest.raises(CheckpointError, match=r"source ends early"),
    ):
        Copier(target, lambda _: None).copy(source, 2, 9)


def test_a_full_disk_is_not_taken_for_an_old_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "source").write_bytes(b"12345")
    monkeypatch.setattr(os, "copy_file_range", full)
    with (
        (tmp_path / "source").open("rb", buffering=0) as source,
        (tmp_path / "target").open("wb", buffering=0) as target,
        pytest.raises(OSError, match="No space"),
    ):
        Copier(target, lambda _: None).copy(source, 0, 5)

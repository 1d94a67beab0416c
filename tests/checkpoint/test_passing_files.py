"""Source files that come one by one: the same bytes, each file once, and one at a time."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from test_checkpoint_writer import TEXTS, edits, name_of, sharded, snapshot, write_checkpoint

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.making import Making, Piece
from moeprune.checkpoint.sources import check_together, passing_sizes
from moeprune.checkpoint.staging import claimed_folder, partial_path
from moeprune.checkpoint.writer import contents_of
from moeprune.core.progress import Progress
from moeprune.errors import HubError, OutputError, UnsupportedModelError

ALL = [name_of(number, 3) for number in (1, 2, 3)]


class Moved:
    """Files that lie elsewhere and are copied here when they are asked for."""

    def __init__(
        self, index: CheckpointIndex, work: Path, *, at_home: tuple[str, ...] = ()
    ) -> None:
        self.elsewhere = work.parent / "elsewhere"
        self.elsewhere.mkdir(exist_ok=True)
        self._index = index
        self._work = work
        self.sizes = {}
        for file in index.files:
            if file not in at_home:
                shutil.move(index.path / file, self.elsewhere / file)
                self.sizes[file] = (self.elsewhere / file).stat().st_size
        self.events: list[tuple[str, str]] = []

    def fetch(self, file: str) -> Path:
        self.events.append(("fetch", file))
        if file not in self.sizes:
            return self._index.path / file
        return Path(shutil.copy(self.elsewhere / file, self._work / file))

    def drop(self, file: str) -> None:
        self.events.append(("drop", file))
        (self._work / file).unlink(missing_ok=True)


@pytest.mark.parametrize("shard_bytes", [None, 1, 40, 80, 10_000])
@pytest.mark.parametrize("at_home", [(), (ALL[0],)])
def test_one_file_at_a_time(
    shard_bytes: int | None, at_home: tuple[str, ...], tmp_path: Path
) -> None:
    index = sharded(tmp_path / "m")
    one = write_checkpoint(
        index, edits(index), tmp_path / "1", texts=TEXTS, shard_bytes=shard_bytes
    )
    out = tmp_path / "out"
    reports: list[Progress] = []
    with claimed_folder(out) as work:
        moved = Moved(index, work, at_home=at_home)
        two = write_checkpoint(
            index,
            edits(index),
            out,
            texts=TEXTS,
            shard_bytes=shard_bytes,
            passing=moved,
            on_progress=reports.append,
        )
        assert [path.name for path in work.iterdir()] == [".moeprune-partial"]
    assert not partial_path(out).exists()
    assert snapshot(two) == snapshot(one)
    # The second file holds experts 0 and 2, which leave: it is never asked for.
    used = [ALL[0], ALL[2]]
    assert moved.events == [(what, file) for file in used for what in ("fetch", "drop")]
    fetched = sum(moved.sizes[file] for file in used if file in moved.sizes)
    assert reports[-1].done == reports[-1].total
    assert reports[-1].total == fetched + sum(len(data) for data in snapshot(two).values())


def test_room_for_the_largest_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = sharded(tmp_path / "m")
    contents = contents_of(index, edits(index), texts=TEXTS)
    out = tmp_path / "out"
    free = 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    with claimed_folder(out) as work:
        moved = Moved(index, work)
        moved.sizes[ALL[1]] = 10**9  # not needed
        needed = passing_sizes(index, contents.shards, moved)
        assert list(needed) == [ALL[0], ALL[2]]
        free = contents.total_bytes + max(needed.values()) - 1
        with pytest.raises(OutputError, match=f"it needs {free + 1:,} bytes"):
            write_checkpoint(index, edits(index), out, texts=TEXTS, passing=moved)
        assert not moved.events
    with claimed_folder(out):
        free += 1
        write_checkpoint(index, edits(index), out, texts=TEXTS, passing=moved)
    assert out.is_dir() and passing_sizes(index, contents.shards, None) == {}


def test_a_file_that_does_not_come_leaves_nothing(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")
    out = tmp_path / "out"

    def broken() -> None:
        with claimed_folder(out) as work:
            moved = Moved(index, work)
            (moved.elsewhere / ALL[2]).unlink()
            fetch = moved.fetch

            def fails(file: str) -> Path:
                if file == ALL[2]:
                    raise HubError("gone")
                return fetch(file)

            moved.fetch = fails  # type: ignore[method-assign]
            write_checkpoint(index, edits(index), out, texts=TEXTS, passing=moved)

    with pytest.raises(HubError, match="gone"):
        broken()
    assert not out.exists() and not partial_path(out).exists()


def test_what_is_made_from_two_files_needs_both(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")
    plain = edits(index)
    one = plain[0]
    other = next(e for e in plain if index.entries[e.source].file != index.entries[one.source].file)
    pieces = tuple(
        Piece(e.source, e.info.dtype, e.info.shape, 0, e.info.nbytes) for e in (one, other)
    )
    making = Making(pieces=pieces, make=lambda data: [data[0]], sizes=(one.info.nbytes,))
    made = [replace(one, making=making), *plain[1:]]
    check_together(index, made, None)
    with claimed_folder(tmp_path / "out") as work:
        moved = Moved(index, work)
        check_together(index, plain, moved)
        with pytest.raises(UnsupportedModelError, match=r"Leave --stream out") as caught:
            check_together(index, made, moved)
        for word in (one.source, other.source, *(index.entries[p.source].file for p in pieces)):
            assert word in str(caught.value)
        moved.sizes.pop(index.entries[other.source].file)  # that one is always here
        check_together(index, made, moved)

"""Shards cut anew hold the same tensors, none beyond the size that was asked for."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from test_checkpoint_writer import (
    EXPECTED,
    INDEX,
    TEXTS,
    assert_holds_expected,
    edits,
    sharded,
    single,
    snapshot,
    write_checkpoint,
)

from moeprune.checkpoint.index import CheckpointIndex

TOTAL = sum(value.nbytes for value in EXPECTED.values())


@pytest.mark.parametrize("make", [single, sharded])
@given(size=st.integers(1, TOTAL + 20))
def test_any_size(tmp_path_factory: pytest.TempPathFactory, make: type[object], size: int) -> None:
    tmp_path = tmp_path_factory.mktemp("cut")
    index = make(tmp_path / "m")  # type: ignore[call-arg]
    assert isinstance(index, CheckpointIndex)
    out = write_checkpoint(index, edits(index), tmp_path / "out", texts=TEXTS, shard_bytes=size)
    files = sorted(out.glob("*.safetensors"))
    arrays = [load_file(file) for file in files]
    assert_holds_expected({name: value for each in arrays for name, value in each.items()})
    assert sum(map(len, arrays)) == len(EXPECTED)
    for each in arrays:
        assert len(each) == 1 or sum(value.nbytes for value in each.values()) <= size
    count = len(files)
    made = CheckpointIndex.open(out)  # checks the index against the shards
    held: dict[str, list[int]] = {}
    for entry in made.entries.values():
        held.setdefault(entry.file, []).append(entry.info.nbytes)
    for one, two in pairwise(held.values()):
        assert sum(one) + two[0] > size  # no file was closed too early
    if count == 1:
        assert [file.name for file in files] == ["model.safetensors"]
        assert not (out / INDEX).exists()
    else:
        names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
        assert [file.name for file in files] == names
        assert json.loads((out / INDEX).read_text())["metadata"]["total_size"] == TOTAL
    kept = {edit.source for edit in edits(index)}
    order = [name for name in index.entries if name in kept]
    targets = {edit.source: edit.target for edit in edits(index)}
    assert list(made.entries) == [targets[name] for name in order]  # the order of the source
    assert all(value == {"format": "pt"} for value in made.metadata.values())


def test_two_runs_give_the_same_bytes(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m")
    outs = [
        write_checkpoint(index, edits(index), tmp_path / name, texts=TEXTS, shard_bytes=40)
        for name in "ab"
    ]
    assert snapshot(outs[0]) == snapshot(outs[1])

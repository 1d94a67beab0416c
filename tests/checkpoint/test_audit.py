"""The audit on hard ground: tensors without values, very many shards, configs with NaN."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up import made_up_layout
from raw_safetensors import folder, noise

from moeprune.checkpoint.audit import audit, config_differences
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.sidecars import sidecars_of
from moeprune.checkpoint.staging import MARKER
from moeprune.core.layout import ExpertTensor
from moeprune.errors import CheckpointError


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 4, 0), (4, 3, 0)])
def test_tensors_without_values(shape: tuple[int, ...], tmp_path: Path) -> None:
    cut = tuple(2 if size == 4 else size for size in shape)
    data = noise(0, 3)
    source = folder(
        tmp_path / "a", {"model.safetensors": [("t", "U8", shape, b""), ("u", "U8", [3], data)]}
    )
    export = folder(
        tmp_path / "b", {"model.safetensors": [("t", "U8", cut, b""), ("u", "U8", [3], data)]}
    )
    rule = ExpertTensor(row=0, role="router", axis=shape.index(4))
    found = audit(
        CheckpointIndex.open(source),
        CheckpointIndex.open(export),
        layout=made_up_layout({"t": rule}, experts=4),
        keep=[[0, 2]],
    )
    assert (found.problems, found.tensors) == ([], 2)


@pytest.fixture
def few_open_files() -> Iterator[None]:
    """As on systems that let a process open 256 files; models have more shards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_open_files")
def test_more_shards_than_open_files(tmp_path: Path) -> None:
    shards = {
        f"model-{n:05}-of-00200.safetensors": [(f"t{n}", "U8", [9], noise(n, 9))]
        for n in range(1, 201)
    }
    source = CheckpointIndex.open(folder(tmp_path / "a", shards))
    export = CheckpointIndex.open(folder(tmp_path / "b", shards))
    found = audit(source, export, layout=made_up_layout({}, experts=4), keep=[[0]])
    assert (found.problems, found.tensors) == ([], 200)


def test_a_shard_that_goes_away(tmp_path: Path) -> None:
    shards = {"model.safetensors": [("t", "U8", [9], noise(0, 9))]}
    source = CheckpointIndex.open(folder(tmp_path / "a", shards))
    export = CheckpointIndex.open(folder(tmp_path / "b", shards))
    (tmp_path / "b" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        audit(source, export, layout=made_up_layout({}, experts=4), keep=[[0]])


@pytest.mark.parametrize(
    ("mine", "theirs", "differs"),
    [
        (float("nan"), float("nan"), False),
        ([float("nan")], [float("nan")], False),
        (1, True, True),
        ([1], [True], True),
        (1, 1.0, True),
        ([0], [0.0], True),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}], False),
    ],
)
def test_values_differ_as_json_does(mine: object, theirs: object, differs: bool) -> None:
    assert bool(list(config_differences({"x": mine}, {"x": theirs}))) is differs


def test_null_is_not_absent() -> None:
    """A missing key gets the family's default, which null does not."""
    gone = list(config_differences({"a": {"x": None}}, {"a": {}}))
    assert [(path, mine, str(theirs)) for path, mine, theirs in gone] == [
        (("a", "x"), None, "absent")
    ]
    assert [path for path, _, _ in config_differences({}, {"x": None})] == [("x",)]
    assert not list(config_differences({"x": None}, {"x": None}))


def test_the_mark_of_a_killed_export_is_no_part_of_a_model(tmp_path: Path) -> None:
    """Copied along it would meet the new export's own mark."""
    source = folder(tmp_path / "a", {"model.safetensors": [("t", "U8", [9], noise(0, 9))]})
    (source / MARKER).touch()
    (source / "tokenizer.json").write_text("{}")
    found = sidecars_of(CheckpointIndex.open(source), replaced=["config.json"])
    assert (found.copied, found.left) == (("tokenizer.json",), ())

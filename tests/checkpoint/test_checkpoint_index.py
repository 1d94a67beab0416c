from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from raw_safetensors import folder, noise, write

from moeprune.checkpoint.index import CheckpointIndex, fingerprint
from moeprune.errors import CheckpointError

A = ("a", "U8", [4], b"aaaa")
B = ("b", "U8", [2], b"bb")
C = ("c", "U8", [3], b"ccc")
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def test_single_and_sharded_read_alike(tmp_path: Path) -> None:
    single = CheckpointIndex.open(folder(tmp_path / "s", {"model.safetensors": [A, B, C]}))
    sharded = CheckpointIndex.open(folder(tmp_path / "m", {TWO: [C, B], ONE: [A]}))
    assert single.index_file is None and sharded.index_file == INDEX
    assert sharded.files == (ONE, TWO)
    assert list(sharded.entries) == ["a", "c", "b"]  # the order of the disk, not of the names
    assert single.tensors == sharded.tensors
    assert single.total_bytes == 9
    entry = sharded.entries["b"]
    assert (sharded.path / entry.file).read_bytes()[entry.start : entry.end] == b"bb"


def test_config_text_is_kept_as_written(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"model.safetensors": [A]})
    text = '\ufeff{\r\n\t"num_experts" : 4, "x": "\\u00e9"}\r\n'
    (path / "config.json").write_bytes(text.encode())
    index = CheckpointIndex.open(path)
    assert index.config_text == text
    assert index.config == {"num_experts": 4, "x": "é"}


def test_shards_that_are_links_are_followed(tmp_path: Path) -> None:
    blobs = folder(tmp_path / "blobs", {"model.safetensors": [A]})
    path = tmp_path / "snapshot"
    path.mkdir()
    for name in ("config.json", "model.safetensors"):
        (path / name).symlink_to(blobs / name)
    assert list(CheckpointIndex.open(path).entries) == ["a"]


def test_a_single_file_may_have_an_index(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors"}}
    path = folder(tmp_path / "m", {"model.safetensors": [A]}, index=index)
    assert CheckpointIndex.open(path).index_file == INDEX


def remove(path: Path, name: str) -> None:
    (path / name).unlink()


def set_index(path: Path, body: object) -> None:
    (path / INDEX).write_text(body if isinstance(body, str) else json.dumps(body))


def map_to(file: object) -> dict[str, object]:
    return {"weight_map": {"a": ONE, "b": TWO, "c": file}}


EMPTY = {ONE: ["a"], TWO: ["b", "c"]}
BROKEN = {
    "no config": (lambda p: remove(p, "config.json"), "no config.json"),
    "config not JSON": (lambda p: (p / "config.json").write_text("{"), "config.json is not JSON"),
    "config a list": (lambda p: (p / "config.json").write_text("[]"), "not a JSON object"),
    "config not UTF-8": (lambda p: (p / "config.json").write_bytes(b"\xff{}"), "not UTF-8"),
    "missing shard": (lambda p: remove(p, TWO), f"{TWO} is missing"),
    "index not JSON": (lambda p: set_index(p, "{"), "not one JSON object"),
    "index a list": (lambda p: set_index(p, "[]"), "no weight_map"),
    "index empty": (lambda p: set_index(p, {"weight_map": {}}), "no weight_map"),
    "index removed": (lambda p: remove(p, INDEX), "neither model.safetensors nor"),
    "no shard has it": (
        lambda p: set_index(p, {"weight_map": {"a": ONE, "b": TWO, "c": TWO, "d": ONE}}),
        "'d' is in .*no shard has it",
    ),
    "in another shard": (lambda p: set_index(p, map_to(ONE)), f"'c' is in {ONE}, but it is in"),
    "not listed": (
        lambda p: set_index(p, {"weight_map": {"a": ONE, "b": TWO}}),
        "'c' .*does not list",
    ),
    "in two shards": (lambda p: write(p / TWO, [B, C, A]), "'a' is in two shards"),
    "truncated": (lambda p: os.truncate(p / TWO, 60), "truncated or corrupt"),
    "absolute": (lambda p: set_index(p, map_to("/etc/x.safetensors")), "not the name of"),
    "upwards": (lambda p: set_index(p, map_to("../x.safetensors")), "not the name of"),
    "subfolder": (lambda p: set_index(p, map_to("d/x.safetensors")), "not the name of"),
    "backslash": (lambda p: set_index(p, map_to("..\\x.safetensors")), "not the name of"),
    "not a text": (lambda p: set_index(p, map_to(3)), "not the name of"),
    "a zero byte": (lambda p: set_index(p, map_to("x\0.safetensors")), "not the name of"),
    "a name too long": (lambda p: set_index(p, map_to("x" * 300 + ".safetensors")), "not the name"),
    "not UTF-8": (lambda p: set_index(p, map_to("\ud800.safetensors")), "is missing"),
    "bottomless": (lambda p: set_index(p, '{"a":' * 100_000), "nested too deeply"),
    "a number of 5,000 digits": (lambda p: set_index(p, "1" * 5000), "digits"),
    "a key twice": (
        lambda p: set_index(p, '{"weight_map": {}, "weight_map": {}}'),
        "'weight_map' occurs twice",
    ),
    "no value": (
        lambda p: [write(p / f, [(n, "U8", [0], b"") for n in t]) for f, t in EMPTY.items()],
        "no tensor with a value",
    ),
    "not safetensors": (lambda p: set_index(p, map_to("x.bin")), "not the name of"),
    "two sets": (lambda p: write(p / "model.safetensors", [A]), "two sets of weights"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_contradictory_folders_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {ONE: [A], TWO: [B, C]})
    CheckpointIndex.open(path)
    damage, reason = BROKEN[case]
    damage(path)
    with pytest.raises(CheckpointError, match=reason) as caught:
        CheckpointIndex.open(path)
    assert "\n" not in str(caught.value)


def test_folders_without_safetensors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        CheckpointIndex.open(tmp_path / "absent")
    path = tmp_path / "m"
    path.mkdir()
    (path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no weights"):
        CheckpointIndex.open(path)
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match=r"only as pytorch_model\.bin.*save_pretrained"):
        CheckpointIndex.open(path)
    with pytest.raises(CheckpointError, match=r"config\.json is a JSON file, not a model"):
        CheckpointIndex.open(path / "config.json")
    write(path / "model.safetensors", [])
    with pytest.raises(CheckpointError, match="hold no tensor"):
        CheckpointIndex.open(path)


def test_fingerprint_sees_routers_and_shapes_but_not_shards(tmp_path: Path) -> None:
    single = CheckpointIndex.open(folder(tmp_path / "1", {"model.safetensors": [A, B, C]}))
    sharded = CheckpointIndex.open(folder(tmp_path / "2", {TWO: [C, B], ONE: [A]}))
    same = fingerprint(single, ["a", "b"])
    assert same == fingerprint(sharded, ["b", "a"]) and len(same) == 64
    for number, table in enumerate(
        [
            [A, ("b", "U8", [2], b"bX"), C],  # a router's byte
            [A, ("b", "I8", [2], b"bb"), C],  # a type
            [A, ("b", "U8", [2, 1], b"bb"), C],  # a shape
            [A, B, ("d", "U8", [3], b"ccc")],  # a name
        ]
    ):
        other = folder(tmp_path / f"x{number}", {"model.safetensors": table})
        assert fingerprint(CheckpointIndex.open(other), ["a", "b"]) != same
    weights = folder(tmp_path / "w", {"model.safetensors": [A, B, ("c", "U8", [3], b"XXX")]})
    assert fingerprint(CheckpointIndex.open(weights), ["a", "b"]) == same


def test_fingerprint_is_stable_over_releases(tmp_path: Path) -> None:
    router = noise(1, 64)
    table = [("größe.gate.weight", "F32", [2, 8], router), A]
    index = CheckpointIndex.open(folder(tmp_path / "m", {"model.safetensors": table}))
    text = '[["a","U8",[4]],["größe.gate.weight","F32",[2,8]]]\n"größe.gate.weight" '
    expected = hashlib.sha256(text.encode() + router).hexdigest()
    assert fingerprint(index, ["größe.gate.weight"]) == expected


def test_a_shard_that_shrinks_after_opening_is_one_line(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"model.safetensors": [A]})
    index = CheckpointIndex.open(path)
    os.truncate(path / "model.safetensors", index.entries["a"].end - 1)
    with pytest.raises(CheckpointError, match="ends 1 bytes early"):
        fingerprint(index, ["a"])


def test_reads_headers_only(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"model.safetensors": [A]})
    shard = path / "model.safetensors"
    header = json.dumps({"x": {"dtype": "U8", "shape": [1 << 40], "data_offsets": [0, 1 << 40]}})
    with shard.open("wb") as file:  # a terabyte of hole: reading it would not end
        file.write(len(header).to_bytes(8, "little") + header.encode())
        try:
            file.truncate(8 + len(header) + (1 << 40))
        except OSError:
            assert sys.platform != "linux"
            return
    assert CheckpointIndex.open(path).total_bytes == 1 << 40

"""The stats file: golden form, round trip, and everything that a damaged one is refused for."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from moeprune.core.stats import FIELDS, CalibrationStats
from moeprune.errors import OutputError, StatsError

Edit = Callable[[dict[str, Any], dict[str, Any]], object]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Stats of two domains; the second layer is narrower."""
    path = tmp_path / "stats.safetensors"
    synthetic.stats(synthetic.facts((8, 6)), domains=("math", "code")).save(path)
    return path


def edited(file: Path, edit: Edit) -> Path:
    arrays = load_file(file)
    with safe_open(file, framework="numpy") as opened:
        body = json.loads(opened.metadata()["moeprune"])
    edit(arrays, body)
    save_file(arrays, file, metadata={"moeprune": json.dumps(body)})
    return file


def test_round_trip_and_same_bytes(file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    CalibrationStats.load(file).save(again)
    assert again.read_bytes() == file.read_bytes()
    assert set(load_file(file)) == {f"{d}/{field}" for d in ("math", "code") for field in FIELDS}


def test_names_that_are_not_utf8(file: Path, tmp_path: Path) -> None:
    """A model folder or a text file may have such a name; hours of measuring must not be lost."""
    stats = CalibrationStats.load(file)
    named = replace(
        stats,
        model=replace(stats.model, name="mod\udcff"),
        domains=(replace(stats.domains[0], source="t\udcff.jsonl"),),
    )
    named.save(tmp_path / "named")
    again = CalibrationStats.load(tmp_path / "named")
    assert (again.model.name, again.domains[0].source) == ("mod\udcff", "t\udcff.jsonl")


def array(name: str, change: Callable[[Any], Any]) -> Edit:
    def edit(arrays: dict[str, Any], body: dict[str, Any]) -> None:
        arrays[name] = np.ascontiguousarray(change(arrays[name].copy()))

    return edit


def put(value: Any, *keys: Any) -> Edit:
    def edit(arrays: dict[str, Any], body: dict[str, Any]) -> None:
        place: Any = body
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return edit


def filled(value: float) -> Callable[[Any], Any]:
    return lambda old: np.full_like(old, value)


def set_at(value: float, *at: int) -> Callable[[Any], Any]:
    def change(old: Any) -> Any:
        old[at] = value
        return old

    return change


def all_on_one(old: Any) -> Any:
    old[:, 0, 0], old[:, 0, 1:] = old[:, 0].sum(axis=1), 0
    return old


def wide_reversed(old: Any) -> Any:
    old[:, 0] = old[:, 0, ::-1].copy()
    return old


def renamed(name: str) -> Edit:
    def edit(arrays: dict[str, Any], body: dict[str, Any]) -> None:
        for field in FIELDS:
            arrays[f"{name}/{field}"] = arrays.pop(f"math/{field}")
        body["domains"][0]["name"] = name

    return edit


BAD: dict[str, tuple[Edit, str]] = {
    "nan": (array("math/prob_sum", set_at(np.nan, 0, 0, 0)), "non-finite"),
    "infinite": (array("math/norm_max", set_at(np.inf, 0, 0, 0)), "non-finite"),
    "negative": (array("math/gate_sum", set_at(-1, 0, 0, 0)), "negative"),
    "sum-overflows": (array("math/norm_sum", filled(1e308)), "non-finite"),
    "counts-wrap": (array("math/count", filled(2**62)), "damaged"),
    "dtype": (array("math/prob_sum", lambda a: a.astype(np.float32)), "expected float64"),
    "shape": (array("math/prob_sum", lambda a: a[:2]), "expected float64"),
    "beyond-narrow": (array("math/norm_sum", set_at(1, 0, 1, 7)), "narrow layer"),
    "count": (array("math/count", set_at(1000, 0, 0, 0)), "routed tokens"),
    "more-visits-than-tokens": (array("math/count", all_on_one), "of one expert"),
    "ranks-of-no-distribution": (array("math/rank_prob_sum", lambda a: a * 2), "rank_prob_sum"),
    "ranks-ascend": (array("math/rank_prob_sum", wide_reversed), "does not fall"),
    "entropy": (array("math/entropy_sum", lambda a: a * 0 + 1e6), "router entropy"),
    "field-missing": (lambda arrays, body: arrays.pop("math/count"), "lacks the field 'count'"),
    "domain-slash": (renamed("a/b"), "domain called"),
    "domain-newline": (renamed("a\nb"), "domain called"),
    "domain-escape": (renamed("\x1b[31m"), "domain called"),
    "domain-blank": (renamed(" "), "domain called"),
    "domains": (put(None, "domains"), "malformed"),
    "documents-text": (put("5", "domains", 0, "documents"), "documents"),
    "documents-infinite": (put(float("inf"), "domains", 0, "documents"), "documents"),
    "documents-0": (put(0, "domains", 0, "documents"), "documents"),
    "source": (put(None, "domains", 0, "source"), "source"),
    "shard": (put([[5, 2]], "domains", 0, "shards"), "shard 5/2"),
    "shard-0": (put([[0, 0]], "domains", 0, "shards"), "shard 0/0"),
    "shards": (put([], "domains", 0, "shards"), "no shard"),
    "top-k": (put(10**30, "model", "top_k"), "top_k"),
    "top-k-beyond": (put(7, "model", "top_k"), "runs 7 of 6 experts"),
    "top-groups": (put(2, "model", "top_groups"), "2 of 1 groups"),
    "bytes": (put(0, "model", "total_bytes"), "0 bytes"),
    "expert-bytes": (put([-1, -1], "model", "expert_bytes"), "expert_bytes"),
    "layers": (put([1, 0], "model", "layer_ids"), "ascend"),
    "experts": (put([True, True], "model", "num_experts"), "num_experts"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", BAD)
def test_damaged_stats_are_refused(case: str, file: Path) -> None:
    edit, says = BAD[case]
    edited(file, edit)
    with pytest.raises(StatsError, match=says) as caught:
        CalibrationStats.load(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["{", "[" * 100_000, '{"schema": "moeprune.stats/1", "schema": "x"}', "null", "1" * 5000],
)
def test_metadata_that_is_none(text: str, file: Path) -> None:
    save_file(load_file(file), file, metadata={"moeprune": text})
    with pytest.raises(StatsError) as caught:
        CalibrationStats.load(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E8M0", "F4"])
def test_a_type_that_numpy_lacks(dtype: str, tmp_path: Path) -> None:
    bits = {"BF16": 16, "F4": 4}.get(dtype, 8)
    entry = {"dtype": dtype, "shape": [8], "data_offsets": [0, bits]}
    header = json.dumps({"math/count": entry}).encode()
    path = tmp_path / "file"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * bits)
    with pytest.raises(StatsError, match=str(path)):
        CalibrationStats.load(path)


@pytest.mark.parametrize(
    ("name", "says"), [("x" * 300, "too long"), ("", "empty folder"), ("no", "not exist")]
)
def test_paths_that_are_no_file(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(StatsError, match=says):
        CalibrationStats.load(tmp_path / name)


def test_a_full_disk(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = CalibrationStats.load(file)

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="No space left"):
        stats.save(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == [file.name]

"""Edits and their audit where numbers count on over sets, experts are idle, or values are ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up import made_up_layout
from raw_safetensors import folder, noise
from safetensors.numpy import load_file, save_file

from moeprune.checkpoint.audit import audit
from moeprune.checkpoint.edits import edits_for
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.tables import table_problem
from moeprune.checkpoint.writer import contents_of, write_checkpoint
from moeprune.core.layout import ExpertTensor, TensorInfo

KEEP = (1, 3, 4)
TABLE = np.array([[0, 1], [1, 0], [4, 2], [3, 1], [2, 0]])


def exported(path: Path, values: dict[str, np.ndarray], rules: dict[str, ExpertTensor]) -> Path:
    table = [(name, "U8", array.shape, array.tobytes()) for name, array in values.items()]
    table = [
        (name, "I64" if values[name].dtype == np.int64 else kind, shape, data)
        for name, kind, shape, data in table
    ]
    source = CheckpointIndex.open(folder(path / "source", {"model.safetensors": table}))
    edits = edits_for(source.tensors, made_up_layout(rules, experts=5), {0: KEEP})
    contents = contents_of(source, edits, texts={"config.json": "{}"})
    return write_checkpoint(source, contents, path / "out")


def problems(path: Path, rules: dict[str, ExpertTensor]) -> list[str]:
    found = audit(
        CheckpointIndex.open(path / "source"),
        CheckpointIndex.open(path / "out"),
        layout=made_up_layout(rules, experts=5),
        keep=[KEEP],
    )
    return found.problems


def stacked(count: int) -> dict[str, np.ndarray]:
    data = np.frombuffer(noise(0, 6 * count), np.uint8).reshape(count, 2, 3)
    return {f"layers.0.experts.{e}.w": data[e] for e in range(count)}


def test_the_numbers_of_a_second_set_count_on(tmp_path: Path) -> None:
    values = stacked(10)
    rules = {
        f"layers.0.experts.{n}.w": ExpertTensor(row=0, role="expert", expert=n % 5, shift=n // 5)
        for n in range(10)
    }
    out = load_file(exported(tmp_path, values, rules) / "model.safetensors")
    old = [*KEEP, *(5 + e for e in KEEP)]
    assert sorted(out) == [f"layers.0.experts.{n}.w" for n in range(6)]
    for new, number in enumerate(old):
        assert (out[f"layers.0.experts.{new}.w"] == values[f"layers.0.experts.{number}.w"]).all()
    assert problems(tmp_path, rules) == []
    out["layers.0.experts.3.w"], out["layers.0.experts.4.w"] = (
        out["layers.0.experts.4.w"],
        out["layers.0.experts.3.w"],
    )
    save_file(out, tmp_path / "out" / "model.safetensors")
    assert len(problems(tmp_path, rules)) == 2


def test_idle_experts_stay_behind_the_kept_ones(tmp_path: Path) -> None:
    values = stacked(7)
    rules = {
        f"layers.0.experts.{n}.w": ExpertTensor(row=0, role="expert", expert=n) for n in range(7)
    }
    out = load_file(exported(tmp_path, values, rules) / "model.safetensors")
    assert sorted(out) == [f"layers.0.experts.{n}.w" for n in range(5)]
    for new, number in enumerate([*KEEP, 5, 6]):
        assert (out[f"layers.0.experts.{new}.w"] == values[f"layers.0.experts.{number}.w"]).all()
    assert problems(tmp_path, rules) == []
    del out["layers.0.experts.4.w"]
    save_file(out, tmp_path / "out" / "model.safetensors")
    assert problems(tmp_path, rules) == [
        "layers.0.experts.4.w is missing (it is layers.0.experts.6.w of the source)"
    ]


def test_a_table_is_written_in_new_numbers(tmp_path: Path) -> None:
    data = np.frombuffer(noise(1, 8), np.uint8)
    values = {"a": data, "t": TABLE, "z": data[::-1].copy()}
    rules = {"t": ExpertTensor(row=0, role="table")}
    out = load_file(exported(tmp_path, values, rules) / "model.safetensors")
    assert (out["a"] == data).all() and (out["z"] == data[::-1]).all()
    new = out["t"]
    assert new.dtype == np.int64 and new.shape == TABLE.shape
    for old_K, new_K in zip(TABLE.tolist(), new.tolist(), strict=True):
        assert len(set(new_K)) == 2
        for old, number in zip(old_K, new_K, strict=True):
            assert 0 <= number < len(KEEP) and (old not in KEEP or KEEP[number] == old)
    assert problems(tmp_path, rules) == []
    for place, value, match in (
        ((0, 1), 1, "another expert than 0"),
        ((4, 0), 3, "names expert 3 of 3"),
        ((4, 0), -1, "names expert"),
        ((4, 0), int(new[4, 1]), "runs an expert twice for token 4"),
    ):
        wrong = new.copy()
        wrong[place] = value
        save_file({**out, "t": wrong}, tmp_path / "out" / "model.safetensors")
        (problem,) = problems(tmp_path, rules)
        assert match in problem


@pytest.mark.parametrize("rows", [4, 6])
def test_a_table_of_another_shape(rows: int) -> None:
    data = np.zeros((rows, 2), np.int64).tobytes()
    found = table_problem(
        TABLE.tobytes(),
        data,
        TensorInfo("I64", (5, 2), 80),
        TensorInfo("I64", (rows, 2), len(data)),
        KEEP,
    )
    assert found == f"has shape [{rows}, 2], expected [5, 2]"

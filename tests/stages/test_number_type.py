"""What a 16-bit checkpoint is calibrated in, where the user leaves it open."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import moeprune
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.errors import StoppedError
from moeprune.observe import compute_dtype
from moeprune.observe.streamed import memory
from moeprune.stages import ready as larger
from moeprune.stages.larger import BESIDE
from moeprune.stages.number_type import stored_type


@pytest.fixture(scope="module")
def half(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of float16 numbers."""
    path = tmp_path_factory.mktemp("half") / "model"
    shutil.copytree(tiny("qwen3_moe"), path)
    file = path / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    return path


@pytest.fixture
def text(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(9)))
    return {"t": str(path)}


def slow(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    monkeypatch.setattr(compute_dtype, "slowdown", lambda *_: by)


def run(model: Path, text: dict[str, str], output: Path | None = None, **words: Any) -> Any:
    said: list[str] = []
    how = {"device": "cpu", "batch_tokens": 16, "on_story": said.append, **words}
    stats = moeprune.calibrate(model, domains=text, output=output, **how)
    return stats.provenance["dtype"], said


def test_slow_numbers_are_computed_in_float32(
    half: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, 4)
    dtype, said = run(half, text)
    assert dtype == "float32"
    assert len(said) == 1 and "--dtype float16 computes as stored" in said[0]
    assert run(half, text, dtype="float16") == ("float16", [])
    assert run(half, text, dtype="bfloat16") == ("bfloat16", [])
    size = CheckpointIndex.open(half).total_bytes
    for there, due in {2.1: "float32", 1.5: "float16"}.items():
        monkeypatch.setattr(memory, "allowed_memory", lambda it=there: BESIDE + int(it * size))
        monkeypatch.setattr(larger, "larger", lambda *_, **__: None)  # of a few bytes more
        dtype, said = run(half, text)
        assert dtype == due and ("but float32 takes" in said[0]) == (due == "float16")
    # One that is read a layer at a time in any case is read in the faster type.
    assert run(half, text, memory="20GB")[0] == "float32"
    slow(monkeypatch, 1)
    assert run(half, text) == ("float16", [])


def test_a_run_that_goes_on_keeps_its_numbers(
    half: Path, text: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, 4)
    run(half, text, tmp_path / "whole")
    for now in (4, 1, 4):  # as if other work had slowed one of them
        slow(monkeypatch, now)
        with pytest.raises(StoppedError):
            run(half, text, tmp_path / "s", stop=lambda: True)
    slow(monkeypatch, 1)
    dtype, said = run(half, text, tmp_path / "s")
    assert dtype == "float32"
    assert len(said) == 1 and "the run goes on from there" in said[0]
    assert (tmp_path / "s").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(
    ("config", "kinds", "found"),
    [
        ({"dtype": "bfloat16"}, {"w": torch.float32}, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, {"w": torch.float32}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, {"w": torch.float32}, "bfloat16"),
        ({"text_config": 3}, {"w": torch.float16}, "float16"),
        ({"dtype": None}, {"w": torch.bfloat16, "scale": torch.float32}, "bfloat16"),
        ({}, {"w": torch.uint8}, "float32"),
    ],
)
def test_stored_type(
    config: dict[str, Any], kinds: dict[str, torch.dtype], found: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {
        name: torch.ones(9 if name == "w" else 1, dtype=kind) for name, kind in kinds.items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert stored_type(CheckpointIndex.open(tmp_path)) == found

"""What an interrupted calibration is gone on with: the same model and engine, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import moeprune
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.sample import sample
from moeprune.errors import MismatchError, OutputError, StoppedError


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "d.jsonl"
    rows = [{"text": f"{row} und {row * row} " * (1 + row % 4)} for row in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def model(tiny: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny("qwen3_moe"), tmp_path / "model"))


def run(model: Path, text: Path, *, stop: int | None = None, **options: Any) -> Any:
    left = iter(range(stop or 0))
    how = {"domains": {"d": str(text)}, "batch_tokens": 60, "device": "cpu", **options}
    output = how.pop("output", text.with_name("s"))
    stops = (lambda: next(left, None) is None) if stop is not None else (lambda: False)
    return moeprune.calibrate(model, output=output, stop=stops, **how)


def stopped(model: Path, text: Path, **options: Any) -> None:
    with pytest.raises(StoppedError):
        run(model, text, stop=2, **options)


def weights(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def apply(model: Path) -> None:
        path = model / "model.safetensors"
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        found = {name: change(name, tensor) for name, tensor in load_file(path).items()}
        save_file(found, path, metadata=metadata)

    return apply


def config(model: Path) -> None:
    path = model / "config.json"
    body = json.loads(path.read_text())
    body["rms_norm_eps"] = 0.1
    path.write_text(json.dumps(body))


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    # Training often leaves the routers alone, and all headers stay what they are.
    "experts": (weights(lambda name, t: t * 1.1 if "expert" in name else t), "content of the weig"),
    "attention": (weights(lambda name, t: t * 1.1 if "attn" in name else t), "content of the weig"),
    "norms": (weights(lambda name, t: t * 1.1 if "norm" in name else t), "content of the weights"),
    "config": (config, "config.json"),
    "code": (lambda model: (model / "own.py").write_text("x = 1\n") and None, "code of the check"),
}


@pytest.mark.parametrize("options", [{}, {"mode": "decode", "max_new_tokens": 4}], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changed_meanwhile(
    change: str, options: dict[str, Any], model: Path, text: Path
) -> None:
    stopped(model, text, **options)
    apply, what = CHANGES[change]
    apply(model)
    pattern = f"another {what}" if not options else "begun by a run of another model"
    with pytest.raises(MismatchError, match=f"{pattern}.*--no-resume"):
        run(model, text, **options)


def test_another_version_measures_something_else(
    model: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(model, text)
    monkeypatch.setattr(moeprune, "__version__", "0.0.1")
    with pytest.raises(MismatchError, match=r"another version of moeprune \('.*' then, '0\.0\.1'"):
        run(model, text)


def test_a_changed_number_of_any_tensor_is_seen_where_it_is_small(model: Path) -> None:
    before = sample(CheckpointIndex.open(model))
    assert sample(CheckpointIndex.open(model)) == before
    for name in load_file(model / "model.safetensors"):
        weights(lambda own, t, name=name: -t if own == name else t)(model)  # type: ignore[misc]
        after = sample(CheckpointIndex.open(model))
        assert after != before, name
        before = after


def test_generations_of_a_file_are_gone_on_with(model: Path, text: Path, tmp_path: Path) -> None:
    run(model, text, output=tmp_path / "g", mode="decode", max_new_tokens=5)
    how: dict[str, Any] = {
        "mode": "decode",
        "domains": None,
        "generations": [tmp_path / "g.generations.jsonl"],
    }
    run(model, text, output=tmp_path / "whole", **how)
    stopped(model, text, **how)
    run(model, text, **how)
    assert (tmp_path / "s").read_bytes() == (tmp_path / "whole").read_bytes()


def test_what_was_generated_is_not_in_the_way(model: Path, text: Path, tmp_path: Path) -> None:
    """Stopped while it observes: what the model wrote lies there as a whole already."""
    how: dict[str, Any] = {"mode": "decode", "max_new_tokens": 5}
    stops = 0
    while not (tmp_path / "s.generations.jsonl").exists():
        stops += 1
        with pytest.raises(StoppedError):
            run(model, text, stop=0, **how)
    assert stops > 1
    run(model, text, **how)
    run(model, text, overwrite=True, **how)
    (tmp_path / "s").unlink()
    with pytest.raises(OutputError, match=r"s\.generations\.jsonl exists"):
        run(model, text, **how)


@pytest.mark.parametrize(
    ("size", "options"),
    [(256, {}), (250, {}), (235, {"mode": "decode", "max_new_tokens": 4})],
    ids=str,
)
def test_names_that_leave_no_room_for_what_lies_beside(
    size: int, options: dict[str, Any], model: Path, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(OutputError, match=r"name too long.*shorter"):
        run(model, text, output=tmp_path / ("s" * size), **options)
    run(model, text, output=tmp_path / ("s" * 220), **options)

"""An export with k₁ and k₂ is evaluated with them: question by question what the live policy is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from questions import every_kind
from tiny import tiny_checkpoint
from uneven import uneven_plan

import moeprune
from moeprune.checkpoint.own_code import MODELING_FILE
from moeprune.cli.eval_text import eval_text
from moeprune.core.run import Run
from moeprune.errors import UsageError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("qwen3_moe", tmp_path_factory.mktemp("source") / "source")


@pytest.fixture(scope="module")
def rerouted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moeprune.export(source, output=tmp_path_factory.mktemp("out") / "out", k1=1, k2=5)


def asked(model: Path, output: Path, **options: Any) -> Run:
    folder = output.parent / "tasks"
    folder.mkdir(exist_ok=True)
    return moeprune.eval(model, tasks=every_kind(folder, 3), output=output, **options)[0]


def test_it_runs_its_own_policy(source: Path, rerouted: Path, tmp_path: Path) -> None:
    folder = asked(rerouted, tmp_path / "folder")
    live = asked(source, tmp_path / "live", k1=1, k2=5)
    native = asked(source, tmp_path / "native")
    assert folder.probe == live.probe and folder.probe != native.probe
    assert [sample.metrics for sample in folder.samples] == [s.metrics for s in live.samples]
    assert folder.variant == {"exported": "uniform", "policy": {"k1": 1, "k2": 5}}
    assert live.variant == {"policy": {"k1": 1, "k2": 5}} and not native.variant
    said = json.loads((tmp_path / "folder" / "run.json").read_text())
    assert said["variant"] == folder.variant
    assert "k1=1 k2=5" in eval_text([folder], tmp_path / "folder")


def test_nothing_is_put_on_top(source: Path, rerouted: Path, tmp_path: Path) -> None:
    for options in ({"k1": 2, "k2": 2}, {"plan": uneven_plan(source)}):
        with pytest.raises(UsageError, match=r"--k1 1 --k2 5, and is evaluated as it is") as raised:
            asked(rerouted, tmp_path / "run", **options)
        assert "\n" not in str(raised.value)


def test_code_that_is_not_ours_does_not_run(rerouted: Path, tmp_path: Path) -> None:
    out, mark = tmp_path / "out", tmp_path / "ran"
    shutil.copytree(rerouted, out)
    with (out / MODELING_FILE).open("a") as file:
        file.write(f"\nopen({str(mark)!r}, 'w')\n")
    with pytest.raises(UsageError, match="--trust-remote-code"):
        asked(out, tmp_path / "run")
    assert not mark.exists()
    asked(out, tmp_path / "run", trust_remote_code=True)
    assert mark.exists()

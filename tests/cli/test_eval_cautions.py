"""What ``moeprune eval`` prints: each caution once, and commands that can be pasted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from plans import plan_keeping

from moeprune.cli.main import main
from moeprune.packaged import calibration_folder
from moeprune.stages.identify import open_model

DEMO = calibration_folder() / "demo"
QUESTIONS = [str(DEMO / "questions" / f"{name}.jsonl") for name in ("code", "science")]

Says = Callable[..., tuple[int, str, str]]


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    """Run ``moeprune eval DEMO …``: exit code, stdout, stderr."""

    def run(*args: str) -> tuple[int, str, str]:
        code = main(["eval", str(DEMO / "model"), *args])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_caution_is_said_once_for_all_tasks_and_recorded(says: Says, tmp_path: Path) -> None:
    output = tmp_path / "run"
    tasks = ("--tasks", ",".join(QUESTIONS), "--limit", "20")
    code, out, err = says(*tasks, "-o", str(output), "--strict")
    assert err.count("looked for") == 1
    assert "tasks 'code' and 'science': 20 questions resolve each" in err
    assert "looked for" not in out
    assert code == 1  # --strict counts what was said before, too
    guards = json.loads((output / "run.json").read_text())["guards"]
    assert [guard["name"] for guard in guards] == ["resolution"]


def test_flips_that_were_seen_are_said_after_the_run(says: Says, tmp_path: Path) -> None:
    experts = open_model(DEMO / "model").facts.num_experts
    plan = plan_keeping(DEMO / "model", [range(number // 2, number) for number in experts])
    plan.save(tmp_path / "p.json")
    file = tmp_path / "v.toml"
    file.write_text("[[variant]]\nname = 'a b'\n[[variant]]\nname = 'p'\nplan = 'p.json'\n")
    output = tmp_path / "two words"
    tasks = ("--tasks", QUESTIONS[0], "--limit", "20")
    _, out, err = says(*tasks, "-o", str(output), "--variants", str(file))
    assert err.count("if 5% of the answers flip") == 1
    assert out.count("of the answers flip") == 1
    assert f"moeprune compare '{output}'" in out
    guards = json.loads((output / "p" / "run.json").read_text())["guards"]
    (text,) = (guard["text"] for guard in guards if guard["name"] == "resolution")
    assert "if 5%" not in text


def test_of_two_runs_of_the_model_as_it_is_none_is_named_the_base(
    says: Says, tmp_path: Path
) -> None:
    file = tmp_path / "v.toml"
    file.write_text("[[variant]]\nname = 'one'\n[[variant]]\nname = 'two'\n")
    tasks = ("--tasks", QUESTIONS[0], "--limit", "2")
    _, out, _ = says(*tasks, "-o", str(tmp_path / "runs"), "--variants", str(file))
    assert out.splitlines()[-1] == f"  moeprune compare BASE {tmp_path / 'runs'}"

"""eval with tasks of lm-eval: variants on one load, going on, guards, several processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked
import pytest
from lm_eval_tasks import GROUP, write_tasks
from plans import plan_keeping

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.core.run import Run
from moeprune.errors import StoppedError, UsageError
from moeprune.packaged import calibration_folder

DEMO = calibration_folder() / "demo"
MODEL = DEMO / "model"
TASKS = (f"lm_eval:{GROUP}", "lm_eval:tiny_text")
FILES = ("run.json", "samples.jsonl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("lm-eval"), DEMO / "questions" / "math.jsonl")


@pytest.fixture(scope="module")
def plan() -> PrunePlan:
    return plan_keeping(MODEL, [sorted({(5 * row + i) % 16 for i in range(6)}) for row in range(4)])


def ask(folder: Path, output: Path | None, **words: Any) -> tuple[Run, ...]:
    told = {"tasks": TASKS, "include": [folder], "device": "cpu", "batch_size": 2, **words}
    return moeprune.eval(MODEL, output=output, **told)


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run beside questions of our own."""
    output = tmp_path_factory.mktemp("whole") / "run"
    ask(folder, output, tasks=[*TASKS, str(DEMO / "questions" / "math.jsonl")], limit=5)
    return output


def test_variants_are_asked_the_same_and_a_plan_answers_as_its_export(
    folder: Path, plan: PrunePlan, tmp_path: Path
) -> None:
    base, pruned = ask(folder, tmp_path / "runs", variants={"base": None, "pruned": plan})
    assert [s.input for s in base.samples] == [s.input for s in pruned.samples]
    exported = moeprune.export(MODEL, plan=plan, output=tmp_path / "small")
    (alone,) = moeprune.eval(
        exported, tasks=TASKS, include=[folder], device="cpu", batch_size=2, output=None
    )
    decided = [(s.key, s.input, s.metrics, s.correct, s.tokens) for s in pruned.samples]
    assert decided == [(s.key, s.input, s.metrics, s.correct, s.tokens) for s in alone.samples]
    assert decided != [(s.key, s.input, s.metrics, s.correct, s.tokens) for s in base.samples]
    comparison = moeprune.compare(base, pruned).to_json()
    assert comparison["variants"][0]["tasks"][f"lm_eval:{GROUP}"]["questions"] == 16


def test_a_run_that_is_stopped_goes_on_to_the_same_bytes(
    folder: Path, plan: PrunePlan, tmp_path: Path
) -> None:
    words = {"variants": {"base": None, "pruned": plan}}
    ask(folder, tmp_path / "once", **words)
    stopped = 0
    for _ in range(10):
        try:
            ask(folder, tmp_path / "often", stop=lambda: True, **words)
        except StoppedError:
            stopped += 1
        else:
            break
    assert stopped == 5, "after each of three tasks of two variants but the last"
    for name in ("base", "pruned"):
        for file in FILES:
            once, often = (tmp_path / run / name / file for run in ("once", "often"))
            assert once.read_bytes() == often.read_bytes()


def test_two_processes_share_the_tasks(folder: Path, whole: Path, tmp_path: Path) -> None:
    command = [
        *("-m", "moeprune", "eval", str(MODEL), "--device", "cpu", "--batch-size", "2"),
        *("--tasks", ",".join([*TASKS, str(DEMO / "questions" / "math.jsonl")]), "--limit", "5"),
        *("--include", str(folder), "-o", str(tmp_path / "run")),
    ]
    for process in forked.launch(2, *command):
        assert process.returncode == 0, process.communicate()[1][-3000:]
    for file in FILES:
        assert (tmp_path / "run" / file).read_bytes() == (whole / file).read_bytes()


def test_expected_accuracies_and_the_guards_reach_the_run(folder: Path) -> None:
    (run,) = ask(folder, None, expected={f"lm_eval:{GROUP}": 0.95})
    found = {(guard["name"], guard["task"]) for guard in run.guards}
    assert ("below-expected", f"lm_eval:{GROUP}") in found
    assert ("budget", f"lm_eval:{GROUP}") in found
    with pytest.raises(UsageError, match="'lm_eval:tiny_group'"):
        ask(folder, None, expected={"lm_eval:tiny_grup": 0.95})


def test_what_a_run_says_of_them(whole: Path) -> None:
    body = json.loads((whole / "run.json").read_text())
    entry = body["tasks"][f"lm_eval:{GROUP}"]
    assert entry["kind"] == "lm_eval"
    assert entry["summary"]["worst_domain"] == "tiny_choice"
    assert set(entry["protocol"]["parts"]) == {"tiny_choice", "tiny_written"}
    assert "lm_eval" in body["provenance"]["versions"]
    perplexity = body["tasks"]["lm_eval:tiny_text"]["summary"]["perplexity"]
    assert perplexity["tokens"] == perplexity["bytes"] == 48 + 960 + 16


def test_a_scan_asks_them_too(folder: Path) -> None:
    """Against runs of eval by themselves; tasks without right and wrong are in no table."""
    texts = {"math": str(DEMO / "calibration" / "math.jsonl")}
    found = moeprune.scan(
        MODEL, k1=2, tasks=TASKS, include=[folder], corpus=texts, chunks=2, limit=4, device="cpu"
    )
    assert [(row.point.k1, row.point.k2) for row in found.rows[1:]] == [
        (2, n) for n in (2, 3, 4, 8)
    ]
    for row in found.rows:
        (run,) = ask(folder, None, limit=4, variants={"x": row.point.policy})
        right = [bool(sample.correct) for sample in run.of_task(TASKS[0])]
        assert len(right) == 8
        assert {name: own.accuracy for name, own in row.tasks.items()} == {
            TASKS[0]: sum(right) / len(right)
        }

"""``moeprune eval`` as a user meets it: what it prints, what it exits with, Ctrl-C."""

from __future__ import annotations

import json
import shlex
import signal
import time
from pathlib import Path
from typing import Any

import forked
import pytest
from plans import plan_keeping
from questions import choosing, every_kind, text, writing

from moeprune.cli.eval_text import half_width
from moeprune.cli.main import main
from moeprune.core.run import Run


def test_one_run(tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = ",".join(every_kind(tmp_path))
    out = tmp_path / "läufe" / "run"
    out.parent.mkdir()
    corpus = f"größe={text(tmp_path / 't.jsonl')}"
    command = ["eval", str(tiny("qwen3_moe")), "-o", str(out), "--tasks", tasks, "--device", "cpu"]
    assert main([*command, "--held-out", corpus, "--chunk", "50", "--name", "mine"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "mine: qwen3_moe"
    head = ["task", "kind", "n", "accuracy", "±", "worst", "domain", "truncated", "p99", "tokens"]
    assert lines[1].split()[: len(head)] == head
    rows = {line.split()[0]: line.split() for line in lines[2:7]}
    assert list(rows) == ["letters", "cloze", "generate", "degeneration", "perplexity-held-out"]
    run = Run.load(out)
    summary = run.tasks["letters"]["summary"]
    assert rows["letters"][2] == "7"
    assert rows["letters"][3] == f"{summary['accuracy']:.1%}"
    worst = summary["worst_domain"]
    assert rows["letters"][5:7] == [worst, f"{summary['domains'][worst]['accuracy']:.1%}"]
    perplexity = run.tasks["perplexity-held-out"]["summary"]["perplexity"]["per_token"]
    assert f"{perplexity:.4g}" in rows["perplexity-held-out"]
    assert lines[-1] == f"  moeprune compare BASE {shlex.quote(str(out))}"
    assert shown.err.count("warning: tasks 'letters', ") == 1


def test_variants_as_json(tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny("qwen3_moe")
    plan_keeping(model, [range(9)] * 3).save(tmp_path / "plan.json")
    (tmp_path / "v.toml").write_text(
        '[[variant]]\nname = "ganz"\n[[variant]]\nname = "剪"\nplan = "plan.json"\n', "utf-8"
    )
    file = choosing(tmp_path / "a.jsonl")
    command = ["eval", str(model), "-o", str(tmp_path / "runs"), "--tasks", str(file)]
    command += ["--chat-template", "off", "--variants", str(tmp_path / "v.toml"), "--device", "cpu"]
    assert main([*command, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in body["runs"]] == ["ganz", "剪"]
    assert all((Path(run["folder"]) / "run.json").is_file() for run in body["runs"])
    assert body["runs"][1]["variant"]["plan"]["removed"] == 9
    assert body["runs"][0]["tasks"]["a"]["summary"]["questions"] == 9
    assert main([*command, "--overwrite"]) == 0
    shown = capsys.readouterr().out
    assert "剪: qwen3_moe, manual, 25.0% of its experts removed (masked)" in shown
    assert shown.splitlines()[-1] == f"  moeprune compare {tmp_path / 'runs'}"
    assert main(["compare", str(tmp_path / "runs")]) == 0
    assert "剪" in capsys.readouterr().out


def test_guards_are_said_and_counted(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = writing(tmp_path / "w.jsonl")
    command = ["eval", str(tiny("olmoe")), "--tasks", str(file), "--chat-template", "off"]
    command += ["--max-new-tokens", "3", "--device", "cpu", "--expect", "w=90%"]
    assert main([*command, "-o", str(tmp_path / "a")]) == 0
    shown = capsys.readouterr()
    assert "use up their budget of 3 tokens" in shown.out
    assert "90.0% is expected of it" in shown.out
    assert "7 questions resolve" in shown.err
    assert main([*command, "-o", str(tmp_path / "b"), "--strict"]) == 1
    assert Run.load(tmp_path / "b").guards
    # What it says before is not said of what is large enough for what is looked for.
    capsys.readouterr()
    assert main([*command, "-o", str(tmp_path / "c"), "--effect", "90"]) == 0
    assert "resolve" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--tasks", "a.jsonl,,b.jsonl"], "names nothing at a comma"),
        (["--tasks", "a.jsonl", "--expect", "a"], "is not TASK=ACC"),
        (["--tasks", "a.jsonl", "--expect", "a=71.5"], "is not TASK=ACC"),
        (["--tasks", "a.jsonl", "--batch-size", "0"], "--batch-size"),
        (["--tasks", "a.jsonl", "--batch-size", "many"], "--batch-size"),
        (["--tasks", "a.jsonl", "--chat-template", "maybe"], "--chat-template"),
        (["--tasks", "a.jsonl", "--effect", "0"], "--effect"),
        (["--tasks", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["--tasks", "a.jsonl"], "Pass --chat-template on|off"),
        (["--tasks", "a.jsonl", "--chat-template", "off", "--seeds", "2"], "--seeds 2"),
        (["--tasks", "a.jsonl", "--chat-template", "off", "--max-new-tokens", "999"], "leaves no"),
        (["--held-out", "a"], "is not NAME=SOURCE"),
    ],
    ids=str,
)
def test_one_line_on_what_is_wrong(
    options: list[str],
    match: str,
    tiny: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    writing(tmp_path / "a.jsonl")
    model = str(tiny("olmoe"))
    capsys.readouterr()
    assert main(["eval", model, "-o", "run", "--device", "cpu", *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("moeprune: ")
    assert match in line
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("output", [".", "/", "..", "a/.."])
@pytest.mark.parametrize("command", ["eval", "calibrate"])
def test_an_output_without_a_name(
    command: str,
    output: str,
    tiny: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    choosing(tmp_path / "a.jsonl")
    asked = ["--tasks", "a.jsonl"] if command == "eval" else ["--domain", "a=a.jsonl"]
    model = str(tiny("olmoe"))
    capsys.readouterr()
    assert main([command, model, "-o", output, *asked]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("moeprune: ")


def test_a_comma_in_a_file_name(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = choosing(tmp_path / "a, b.jsonl")
    command = ["eval", str(tiny("olmoe")), "-o", str(tmp_path / "run"), "--tasks", str(file)]
    assert main([*command, "--chat-template", "off", "--device", "cpu", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["runs"][0]["tasks"]) == ["a, b"]


def test_half_of_wilsons_interval() -> None:
    from scipy.stats import binomtest

    for number, right in ((9, 0), (9, 9), (150, 133), (900, 844)):
        low, high = binomtest(right, number).proportion_ci(method="wilson")
        assert half_width(right / number, number) == pytest.approx((high - low) / 2, rel=1e-6)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_finishes_the_batch_and_keeps_it(
    number: signal.Signals, tiny: Any, tmp_path: Path
) -> None:
    choosing(tmp_path / "many.jsonl", 3000)
    command = ["-m", "moeprune", "eval", str(tiny("qwen3_moe")), "-o", "run"]
    command += ["--tasks", "many.jsonl", "--chat-template", "off", "--batch-size", "8"]
    job = forked.start([*command, "--device", "cpu"], cwd=tmp_path)
    answers = tmp_path / "run.progress" / "0-0-of-1.jsonl"
    for _ in range(600):
        if answers.exists() and answers.stat().st_size:
            break
        time.sleep(0.1)
    job.send_signal(number)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    assert out == ""
    assert "stopping, with what is measured kept" in err
    assert "of 3,000 questions; run.progress holds them: the same command goes on" in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()
    assert answers.read_bytes().endswith(b"\n")

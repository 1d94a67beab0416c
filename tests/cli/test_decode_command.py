"""calibrate --mode decode as typed: what it prints, and one line where it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeprune.cli.main import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"Question {i}"} for i in range(5)]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_lengths_and_a_warning_are_printed(
    folder: Path, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["calibrate", str(tiny("qwen3_moe")), "-o", "s.safetensors", "--domain", "q=q.jsonl"]
    capsys.readouterr()  # of writing the checkpoint
    decode = [*typed, "--mode", "decode", "--max-new-tokens", "9"]
    assert main(decode) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert err == ""
    assert lines[3].startswith("tokens an expert received:")
    del lines[3]
    assert lines[1:5] == [
        "domain documents tokens",
        "q 5 40",
        "completions, tokens number p50 p99 max cut",
        "q 5 9 9 9 100.0%",
    ]
    assert lines[5].startswith("warning: domain 'q': 100.0% of the completions were cut")
    assert lines[6:] == ["written to s.safetensors"]
    assert main([*decode, "--json", "--overwrite"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["completions"]["q"] == {
        "number": 5, "p50": 9, "p99": 9, "max": 9, "cut": 5, "cut_share": 1.0,
    }  # fmt: skip
    assert len(body["warnings"]) == 1
    kept = ["--generations", "s.generations.jsonl"]
    assert main([*typed[:3], "t.safetensors", "--mode", "decode", *kept]) == 0
    assert main([*typed[:3], "u.safetensors", *kept]) == 2
    out, err = capsys.readouterr()
    assert err == "moeprune: --generations goes with --mode decode only. Leave it out.\n"
    Path("t.txt").write_text("Some text.")
    assert main([*typed[:3], "p.safetensors", "--domain", "q=t.txt"]) == 0
    assert main(["merge", "p.safetensors", "t.safetensors", "-o", "m.safetensors"]) == 2
    assert "mode 'prefill' and 'decode'" in capsys.readouterr().err
    assert not Path("m.safetensors").exists()


def test_prefill_prints_nothing_of_completions(
    folder: Path, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.txt").write_text("Some text.")
    typed = ["calibrate", str(tiny("qwen3_moe")), "-o", "s", "--domain", "q=t.txt"]
    capsys.readouterr()
    assert main(typed) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert main([*typed, "--json", "--overwrite"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {
        "output", "model", "domains", "unseen", "tokens_per_expert",
    }  # fmt: skip

"""export --quantize, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeprune.cli.main import main

MODEL = Path(__file__).parents[2] / "calibration" / "demo" / "model"


def test_a_quantised_source_only_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = ["export", str(MODEL), "-o", "int8", "--quantize", "int8"]
    assert main([*plain, "--requantize"]) == 2
    assert "--requantize is for quantised models" in capsys.readouterr().err
    assert main(plain) == 0
    capsys.readouterr()
    assert main(["export", "int8", "-o", "int4", "--quantize", "int4"]) != 0
    assert "pass --requantize" in capsys.readouterr().err
    assert main(["export", "int8", "-o", "int4", "--quantize", "int4", "--requantize"]) == 0
    out = capsys.readouterr().out
    assert "(100% of 1,179,648 parameters)" in out and "a second time" in out
    record = json.loads((tmp_path / "int4" / "moeprune.json").read_text())["quantisation"]
    assert record["options"]["requantize"] is True
    assert main(["verify", "int4", "--source", "int8"]) == 0


@pytest.mark.parametrize(
    "words", [["--also", "shared"], ["--group-size", "32"], ["--double-quant"], ["--requantize"]]
)
def test_options_that_serve_only_with_quantize(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(MODEL), "-o", str(tmp_path / "out"), *words]) != 0
    assert f"{words[0]} says how --quantize is to be done" in capsys.readouterr().err


def test_the_card_says_what_the_export_warns_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(MODEL), "-o", str(tmp_path / "out"), "--quantize", "nf4"]) == 0
    told = "nf4: no block divides 48 inputs"  # of down projections: the experts are 48 wide
    assert told in capsys.readouterr().out
    assert f"Note: {told}" in (tmp_path / "out" / "README.md").read_text()

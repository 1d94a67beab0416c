"""What calibrate says: duplicates, warnings, and that it wrote nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeprune.cli.main import main


def test_duplicates_and_short_texts_are_said(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": "one"}, {"text": "two"}, {"text": "one"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "r.toml").write_text(
        'schema = "moeprune.recipe/1"\n[domains."ä"]\nsource = "a.jsonl"\n', "utf-8"
    )
    stats = tmp_path / "s"
    arguments = ["calibrate", str(tiny("qwen3_moe")), "-o", str(stats)]
    recipe = ["--recipe", str(tmp_path / "r.toml"), "--chat-template", "off", "--device", "cpu"]
    assert main([*arguments, *recipe]) == 0
    out, err = capsys.readouterr()
    assert "left out as exact duplicates: ä 1\n" in out
    assert [line for line in err.splitlines() if "warning" in line] == [
        "warning: documents are cut to 512 tokens; MESA's paper (D.1) found plans stable from 1024 "
        "tokens a document on, and the length to matter more than the number of documents. "
        "A larger --length serves better, where the model has positions for it."
    ]
    assert main(["merge", str(stats), "-o", str(stats), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["domains"]["ä"] == {"documents": 2, "tokens": 6, "duplicates": 1}
    assert main([*arguments, "--domain", f"b={tmp_path / 'a.jsonl'}", *recipe, "--overwrite"]) == 2
    assert "give one of them" in capsys.readouterr().err

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
    assert said["missing"] == {}
    assert main([*arguments, "--domain", f"b={tmp_path / 'a.jsonl'}", *recipe, "--overwrite"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_merge_says_which_shards_are_missing(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("\f".join(f"Text {i}." for i in range(40)))
    parts = []
    for i in range(0, 20, 2):
        parts.append(str(tmp_path / f"s{i}"))
        domain = f"math={tmp_path / 'a.txt'}"
        arguments = ["calibrate", str(tiny("mixtral")), "-o", parts[-1], "--domain", domain]
        assert main([*arguments, "--shard", f"{i}/20", "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main(["merge", *parts, "-o", str(tmp_path / "m"), "--json"]) == 0
    out, err = capsys.readouterr()
    odd = [f"{i}/20" for i in range(1, 20, 2)]
    assert json.loads(out)["missing"] == {"math": odd}
    assert err == (
        f"warning: not whole: math lacks shards {', '.join(odd[:8])} and 2 more. "
        "Merge them too, or plans are made without them.\n"
    )
    assert main(["merge", parts[0], "-o", str(tmp_path / "m")]) == 0
    out, err = capsys.readouterr()
    assert "2 of 40" in out and err.startswith("warning: not whole: math lacks shards 1/20, ")


def test_batch_tokens(tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("\f".join(f"Text {i}." for i in range(40)))
    domain = ["--domain", f"math={tmp_path / 'a.txt'}", "--device", "cpu"]
    for size in ("0", "-1", "1.5", "all", ""):
        arguments = ["calibrate", str(tiny("mixtral")), "-o", str(tmp_path / "no"), *domain]
        assert main([*arguments, f"--batch-tokens={size}"]) == 2
        err = capsys.readouterr().err
        assert "--batch-tokens" in err and "Traceback" not in err
    files = []
    for size in ([], ["--batch-tokens", "auto"], ["--batch-tokens", "8192"]):
        files.append(tmp_path / f"s{len(files)}")
        arguments = ["calibrate", str(tiny("mixtral")), "-o", str(files[-1]), *domain]
        assert main([*arguments, *size]) == 0
    assert len({file.read_bytes() for file in files}) == 1
    capsys.readouterr()
    assert main(["merge", str(files[0]), str(files[2]), "-o", str(tmp_path / "m")]) == 2
    assert "overlaps" in capsys.readouterr().err  # the same shard twice, not another setting

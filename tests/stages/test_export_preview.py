"""--dry-run tells what export then does, and writes nothing; --shard-size cuts the files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import safe_open
from test_export_stage import plan_for, stored

import moeprune
from moeprune.cli.main import main

Tiny = Callable[[str], Path]


@pytest.fixture
def job(tiny: Tiny, tmp_path: Path) -> list[str]:
    source = tiny("deepseek_v3")
    plan_for(source).save(tmp_path / "plan.json")
    out = str(tmp_path / "out")
    return ["export", str(source), "-o", out, "--plan", str(tmp_path / "plan.json")]


def test_the_preview_is_what_happens(
    job: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = Path(job[1]), tmp_path / "out"
    for options in ([], ["--shard-size", "30kB"]):
        assert main([*job, *options, "--dry-run", "--json"]) == 0
        preview = json.loads(capsys.readouterr().out)
        assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
        assert main([*job, *options, "--json"]) == 0
        made = json.loads(capsys.readouterr().out)
        assert made["size"] == preview["size"]
        assert made["token"] == preview["token"]
        assert made["token"]["native"] == moeprune.inspect(source).token.native.to_json()
        now = moeprune.inspect(out).token.native.to_json()
        assert {key: made["token"][key] for key in now} == now
        files = {str(p.relative_to(out)): p.stat().st_size for p in out.rglob("*") if p.is_file()}
        assert preview["files"] == files
        assert preview["bytes_to_write"] == sum(files.values())
        before, after = stored(source), stored(out)
        assert preview["size"]["bytes_after"] == sum(v.nbytes for v in after.values())
        assert {row["target"] for row in preview["tensors"]} == after.keys()
        assert {row["source"] for row in preview["tensors"]} | set(preview["removed"]) == (
            before.keys()
        )
        for row in preview["tensors"]:
            tensor = after[row["target"]]
            assert row["shape"] == list(tensor.shape) and row["bytes"] == tensor.nbytes
            with safe_open(out / row["file"], "pt") as file:
                assert row["target"] in file.keys()  # noqa: SIM118
            same = before[row["source"]].shape == tensor.shape
            assert (row["action"] == "slice") == (not same)
            assert (row["action"] == "copy") == (same and row["source"] == row["target"])
        config = json.loads((out / "config.json").read_text())
        assert preview["config"] and all(config[k] == v for k, v in preview["config"].items())
        assert moeprune.verify(out, source=source).ok
        for path in sorted(out.rglob("*"), reverse=True):
            path.unlink()
        out.rmdir()


def test_the_preview_in_words(job: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*job, "--dry-run", "--shard-size", "10kB"]) == 0
    text = capsys.readouterr().out
    assert "would hold" in text and "nothing was written" in text
    assert "config.json: n_routed_experts = 9" in text
    assert "more weight files" in text and "free on that disk" in text
    assert main(job) == 0
    assert "9 experts in each MoE layer" in capsys.readouterr().out
    assert main([*job, "--dry-run"]) == 2  # as without --dry-run
    assert "exists" in capsys.readouterr().err


def test_the_preview_says_what_does_not_fit(
    job: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=999))
    assert main([*job, "--dry-run"]) == 0
    assert "999 B free on that disk: too little" in capsys.readouterr().out
    assert main(job) == 2
    assert "999 free" in capsys.readouterr().err


def test_options_that_do_not_fit(job: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*job, "--shard-size", "big"]) == 2
    assert "--shard-size 'big' is not a size such as 5GB" in capsys.readouterr().err
    assert main([*job, "--mtp", "melt"]) == 2
    assert "'prune', 'drop', 'keep'" in capsys.readouterr().err


def test_cut_shards_load(tiny: Tiny, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    source = tiny("gpt_oss")
    plan = plan_for(source)
    one = moeprune.export(source, plan=plan, output=tmp_path / "one")
    cut = moeprune.export(source, plan=plan, output=tmp_path / "cut", shard_size="20kB")
    assert len(list(cut.glob("*.safetensors"))) > 3
    model, report = AutoModelForCausalLM.from_pretrained(cut, output_loading_info=True)
    assert not any(report.values()), report
    other = AutoModelForCausalLM.from_pretrained(one).state_dict()
    assert all(value.equal(other[name]) for name, value in model.state_dict().items())
    assert (cut / "moeprune.json").read_bytes() == (one / "moeprune.json").read_bytes()

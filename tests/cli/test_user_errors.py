"""The mistakes users will make: one line that names the thing, exit code 2, nothing left behind."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from moeprune.cli.main import main

Run = Callable[..., str]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line; check the form of the error and return its line."""

    def run(*args: object) -> str:
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert code == 2, (code, out, err)
        assert out == ""
        assert err.startswith("moeprune: ") and err.count("\n") == 1, err
        assert "Traceback" not in err
        return err

    return run


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, its stats and a plan; tests copy the model before they break it."""
    from tiny import tiny_checkpoint

    import moeprune

    folder = tmp_path_factory.mktemp("job")
    model = tiny_checkpoint("qwen3_moe", folder / "model", max_shard_size="60KB")
    text = folder / "text.jsonl"
    text.write_text('{"text": "Some words to route through the layers."}\n' * 4)
    stats, plan = folder / "stats.safetensors", folder / "plan.json"
    moeprune.calibrate(model, output=stats, domains={"words": str(text)})
    moeprune.plan(stats, output=plan, method="reap", ratio=0.25)
    return {"model": model, "stats": stats, "plan": plan, "text": text}


@pytest.fixture
def broken(job: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the model to break."""
    return Path(shutil.copytree(job["model"], tmp_path / "broken"))


def shard_of(model: Path) -> Path:
    return sorted(model.glob("model-*.safetensors"))[1]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("dense") / "llama"
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_not_a_moe(dense: Path, job: dict[str, Path], tmp_path: Path, fails: Run) -> None:
    for args in (
        ("inspect", dense),
        ("calibrate", dense, "-o", tmp_path / "s"),
        ("export", dense, "-o", tmp_path / "out", "--plan", job["plan"]),
    ):
        assert "llama" in fails(*args)
    assert not list(tmp_path.glob("*out*")) and not (tmp_path / "s").exists()


@pytest.mark.parametrize("ratio", ["0.9", "0.001", "0", "1", "-0.5", "nan"])
def test_impossible_ratio(ratio: str, job: dict[str, Path], tmp_path: Path, fails: Run) -> None:
    err = fails("plan", job["stats"], "-o", tmp_path / "p.json", f"--ratio={ratio}")
    assert f"--ratio {float(ratio)}" in err or f"--ratio {ratio}" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keep", ["2", "12", "13", "0"])
def test_impossible_keep(keep: str, job: dict[str, Path], tmp_path: Path, fails: Run) -> None:
    assert f"--keep {keep}" in fails("plan", job["stats"], "-o", tmp_path / "p", "--keep", keep)
    assert not list(tmp_path.iterdir())


def test_plan_of_another_model(
    job: dict[str, Path], broken: Path, tmp_path: Path, fails: Run
) -> None:
    """Same shapes, other weights: a fine-tune of the same base."""
    for shard in broken.glob("*.safetensors"):
        tensors = load_file(shard)
        for name in tensors:
            if name.endswith("mlp.gate.weight"):
                tensors[name] = tensors[name].flip(0).contiguous()
        save_file(tensors, shard, metadata={"format": "pt"})
    err = fails("export", broken, "-o", tmp_path / "out", "--plan", job["plan"])
    assert "model" in err and "broken" in err
    assert not list(tmp_path.glob("out*"))


def test_plan_through_a_pipe(job: dict[str, Path], tmp_path: Path) -> None:
    """A pipe can be read once."""
    reading, writing = os.pipe()
    os.write(writing, job["plan"].read_bytes())
    os.close(writing)
    out = tmp_path / "out"
    assert main(["export", str(job["model"]), "-o", str(out), "--plan", f"/dev/fd/{reading}"]) == 0
    os.close(reading)
    assert (out / "config.json").is_file()


def test_truncated_shard(job: dict[str, Path], broken: Path, tmp_path: Path, fails: Run) -> None:
    shard = shard_of(broken)
    with shard.open("rb+") as file:
        file.truncate(shard.stat().st_size - 7)
    for args in (
        ("inspect", broken),
        ("calibrate", broken, "-o", tmp_path / "s"),
        ("export", broken, "-o", tmp_path / "out", "--plan", job["plan"]),
    ):
        assert shard.name in fails(*args)
    assert not list(tmp_path.glob("out*")) and not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "damage",
    [b"", b"\x00" * 7, b"\xff" * 64, (8).to_bytes(8, "little") + b"not json", b"{}"],
    ids=["empty", "short", "huge", "text", "brace"],
)
def test_corrupt_shard(damage: bytes, broken: Path, fails: Run) -> None:
    shard = shard_of(broken)
    shard.write_bytes(damage)
    assert shard.name in fails("inspect", broken)


def test_missing_shard(job: dict[str, Path], broken: Path, tmp_path: Path, fails: Run) -> None:
    shard = shard_of(broken)
    shard.unlink()
    assert shard.name in fails("export", broken, "-o", tmp_path / "out", "--plan", job["plan"])
    assert not list(tmp_path.glob("out*"))


def test_index_names_a_tensor_no_shard_has(broken: Path, fails: Run) -> None:
    index = broken / "model.safetensors.index.json"
    body = json.loads(index.read_text())
    body["weight_map"]["model.ghost.weight"] = shard_of(broken).name
    index.write_text(json.dumps(body))
    assert "model.ghost.weight" in fails("inspect", broken)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_index_leaves_the_folder(name: str, broken: Path, fails: Run) -> None:
    index = broken / "model.safetensors.index.json"
    body = json.loads(index.read_text())
    body["weight_map"][next(iter(body["weight_map"]))] = name
    index.write_text(json.dumps(body))
    assert name in fails("inspect", broken)


def test_out_exists(job: dict[str, Path], tmp_path: Path, fails: Run) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("keep me")
    assert str(out) in fails("export", job["model"], "-o", out, "--plan", job["plan"])
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine"]


def test_out_inside_model(job: dict[str, Path], broken: Path, fails: Run) -> None:
    before = sorted(broken.rglob("*"))
    assert "inside" in fails("export", broken, "-o", broken / "out", "--plan", job["plan"])
    assert sorted(broken.rglob("*")) == before


def test_full_disk(
    job: dict[str, Path], tmp_path: Path, fails: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up while the second shard is written."""
    real = os.fsync
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    err = fails("export", job["model"], "-o", tmp_path / "out", "--plan", job["plan"])
    assert "space" in err.lower()
    assert not list(tmp_path.iterdir())


def test_unreadable_tokenizer(
    job: dict[str, Path], broken: Path, tmp_path: Path, fails: Run
) -> None:
    (broken / "tokenizer.json").write_text("{not json")
    err = fails("calibrate", broken, "-o", tmp_path / "s", "--domain", f"words={job['text']}")
    assert "tokenizer" in err and str(broken) in err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["empty.jsonl"]),
        ('{"text": ""}\n', ["empty.jsonl"]),
        ('{"text": "fine"}\nnot json\n', ["empty.jsonl", "2"]),
        ('{"text": "fine"}\n["a list"]\n', ["empty.jsonl", "2"]),
        ('{"text": "fine"}\n\n{"body": "no text"}\n', ["empty.jsonl", "3"]),
        ('{"text": 5}\n', ["empty.jsonl", "1"]),
    ],
    ids=["no-line", "no-token", "not-json", "not-object", "no-key", "not-text"],
)
def test_bad_text(
    content: str, words: list[str], job: dict[str, Path], tmp_path: Path, fails: Run
) -> None:
    text = tmp_path / "empty.jsonl"
    text.write_text(content)
    err = fails("calibrate", job["model"], "-o", tmp_path / "s", "--domain", f"words={text}")
    for word in words:
        assert word in err
    assert [path.name for path in tmp_path.iterdir()] == ["empty.jsonl"]


@pytest.mark.parametrize(
    "domain", ["words", "=x.jsonl", "a=nowhere.jsonl", "a=builtin:nothing", "a/b=builtin:math"]
)
def test_bad_domain(domain: str, job: dict[str, Path], tmp_path: Path, fails: Run) -> None:
    fails("calibrate", job["model"], "-o", tmp_path / "s", "--domain", domain)
    assert not list(tmp_path.iterdir())


def test_stats_that_are_none(job: dict[str, Path], tmp_path: Path, fails: Run) -> None:
    shard = shard_of(job["model"])
    for wrong in (job["plan"], shard, job["text"]):
        assert str(wrong) in fails("plan", wrong, "-o", tmp_path / "p", "--ratio", "0.25")


def test_verify_refuses_what_export_did_not_write(job: dict[str, Path], fails: Run) -> None:
    copy = job["model"].parent / "copy"
    shutil.copytree(job["model"], copy, dirs_exist_ok=True)
    assert "moeprune.json" in fails("verify", copy, "--source", job["model"])

"""plan --quantize mixed and export of it, as typed."""

import json
from pathlib import Path

import pytest
import synthetic
from tiny import tiny_checkpoint

from moeprune.cli.main import main
from moeprune.stages.identify import open_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and stats of it."""
    path = tmp_path_factory.mktemp("mixed")
    tiny_checkpoint("qwen3_moe", path / "model", hidden_size=64, moe_intermediate_size=64)
    stats = synthetic.stats(open_model(path / "model").facts, seed=5)
    stats.save(path / "stats.safetensors")
    return path


@pytest.fixture
def says(folder, monkeypatch, capsys):
    """Run ``moeprune …`` in the folder: exit code, stdout, stderr."""
    monkeypatch.chdir(folder)

    def run(*args):
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return run


WORDS = ("--quantize", "mixed", "--weights", "model")


def test_a_plan_is_made_shown_compared_and_followed(says, folder: Path):
    code, out, err = says("plan", "stats.safetensors", "-o", "a.json", *WORDS, "--budget", "800kB")
    assert code == 0, err
    assert "mixed (reap-sum, uniform): keeps 36 of 36 experts" in out
    assert "of all experts' reap-sum is lost to rounding; no other choice" in out
    assert "at most 800.00 kB" in out
    assert says("plan", "show", "a.json")[1].splitlines()[1:5] == out.splitlines()[1:5]
    several = ("--method", "reap", "--max-bytes", "500kB")
    code, out, err = says("plan", "stats.safetensors", "-o", "b.json", *WORDS, *several)
    assert code == 0, err
    assert "is lost to rounding and removal" in out
    code, out, _ = says("plan", "diff", "a.json", "b.json")
    assert code == 0 and "A stores  B stores" in out
    code, out, err = says("export", "model", "-o", "out", "--plan", "a.json", "--json")
    assert code == 0, err
    found = json.loads(out)["quantisation"]
    assert found["scheme"] == "mixed" and len(found["schemes"]) == 3
    assert sum(path.stat().st_size for path in (folder / "out").iterdir()) <= 800_000


def test_export_chooses_by_itself_and_previews(says, folder: Path):
    words = ("--quantize", "mixed", "--budget", "800kB", "--stats", "stats.safetensors")
    code, out, err = says("export", "model", "-o", "preview", *words, "--dry-run")
    assert code == 0, err
    assert "routed experts in mixed (" in out and "nothing was written" in out
    assert not (folder / "preview").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "stats.safetensors", "-o", "c.json", *WORDS), "needs one of --budget SIZE"),
        (
            ("plan", "stats.safetensors", "-o", "c.json", *WORDS, "--budget", "1kB"),
            "cannot be met: the smallest",
        ),
        (
            (*("plan", "stats.safetensors", "-o", "c", "--ratio", "0.25,0.5"), *WORDS),
            "does not go with several ratios",
        ),
        (("export", "model", "-o", "c", "--budget", "1MB"), "give --quantize mixed too"),
        (("export", "model", "-o", "c", "--quantize", "mixed"), "give --budget and --stats"),
    ],
)
def test_mistakes_are_one_line(words, message, says, folder: Path):
    code, out, err = says(*words)
    assert code == 2 and not out
    assert message in err and len(err.strip().splitlines()) == 1
    assert not (folder / "c").exists() and not (folder / "c.json").exists()

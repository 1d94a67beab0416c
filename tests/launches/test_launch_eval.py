"""Several processes share the batches of an evaluation: the bytes of one, and one that speaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forked
import pytest
from launching import drive, only_one_says
from plans import plan_keeping
from questions import every_kind, text
from tiny import tiny_checkpoint

import moeprune
from moeprune.errors import StoppedError

SMALL: dict[str, Any] = {"num_hidden_layers": 2, "mlp_only_layers": []}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch")
    model = tiny_checkpoint("qwen3_moe", folder / "model", **SMALL)
    plan_keeping(model, [range(9)] * 2).save(folder / "plan.json")
    (folder / "variants.toml").write_text(
        '[[variant]]\nname = "ganz"\n[[variant]]\nname = "剪"\nplan = "plan.json"\n', "utf-8"
    )
    (folder / "tasks").mkdir()
    return folder


@pytest.fixture(scope="module")
def words(place: Path) -> dict[str, Any]:
    return {
        "model": str(place / "model"),
        "tasks": every_kind(place / "tasks", 6),
        "corpus": {"t": text(place / "t.jsonl")},
        "variants": str(place / "variants.toml"),
        "chunk": 50,
        "batch_size": 3,
        "device": "cpu",
    }


@pytest.fixture(scope="module")
def whole(place: Path, words: dict[str, Any]) -> dict[str, bytes]:
    moeprune.eval(output=place / "one", **words)
    return data(place / "one")


def data(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_two_processes(words: dict[str, Any], whole: dict[str, bytes], tmp_path: Path) -> None:
    """The bytes of one; stopped, they go on, also as one or as three."""
    job = {"call": "eval", **words}
    own = {key: value for key, value in words.items() if key not in ("variants", "tasks")}
    scan = {"call": "scan", **own, "k1": 1, "tasks": words["tasks"][0]}
    other = tiny_checkpoint("qwen3_moe", tmp_path / "other", seed=1, **SMALL)
    beside = {"call": "eval", **own, "agreement_with": str(other)}
    lost = {**own, "variants": words["variants"], "answer_loss": True}
    said = drive(
        2,
        {
            "two": {**job, "output": str(tmp_path / "two")},
            "stopped": {**job, "output": str(tmp_path / "s"), "stop_after": 4},
            "alone": {**job, "output": str(tmp_path / "alone"), "stop_after": 2},
            "goes on": {**job, "output": str(tmp_path / "s")},
            "missing": {
                **job,
                "output": str(tmp_path / "m"),
                "rank 1": {"tasks": [str(tmp_path / "no.jsonl")]},
            },
            "differs": {**job, "output": str(tmp_path / "d"), "rank 1": {"limit": 2}},
            "scan": {**scan, "output": str(tmp_path / "scan")},
            "selections": {**beside, "output": str(tmp_path / "selections")},
            "losses": {"call": "eval", **lost, "output": str(tmp_path / "losses")},
        },
        tmp_path,
    )
    assert data(tmp_path / "two") == whole
    for one in said["two"]:
        assert one["samples"] == {"ganz": 34, "剪": 34}
    reports = said["two"][0]["reports"]
    assert reports[-1] == ["eval", 68, 68]
    assert all(done <= total for _, done, total in reports)
    assert said["two"][1]["reports"] == []
    line = only_one_says(said["stopped"], "StoppedError")
    assert "the same launch goes on from there" in line
    assert data(tmp_path / "s") == whole
    assert said["goes on"][0]["reports"][0][1] > 0
    assert "no.jsonl" in only_one_says(said["missing"], "UsageError")
    assert "not given the same request" in only_one_says(said["differs"], "MismatchError")
    (alone,) = moeprune.eval(output=tmp_path / "one", agreement_with=other, **own)
    assert 0 < alone.agreement["overlap"] < 1
    assert data(tmp_path / "selections") == data(tmp_path / "one")
    done = [done for stage, done, _ in said["selections"][0]["reports"] if stage == "selection"]
    assert done == sorted(done) and 0 < done[-1] <= 2 * alone.agreement["tokens"]
    ganz, cut = moeprune.eval(output=tmp_path / "lost", **lost)
    assert (
        ganz.answer_loss
        and cut.answer_loss
        and data(tmp_path / "losses") == data(tmp_path / "lost")
    )
    # What two processes have begun, one ends.
    moeprune.eval(output=tmp_path / "alone", **words)
    assert data(tmp_path / "alone") == whole
    left = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert left == {"two", "s", "alone", "scan", "other", "one", "selections", "losses", "lost"}
    assert [one.get("rows") for one in said["scan"]] == [5, 5], said["scan"]
    scan.pop("call")
    moeprune.scan(**scan, output=tmp_path / "alone", overwrite=True)
    assert data(tmp_path / "scan") == data(tmp_path / "alone")


def test_what_one_process_has_begun_three_end(
    words: dict[str, Any], whole: dict[str, bytes], tmp_path: Path
) -> None:
    calls = iter(range(100))
    with pytest.raises(StoppedError):
        moeprune.eval(output=tmp_path / "s", stop=lambda: next(calls) == 5, **words)
    files = (tmp_path / "s.progress").glob("*-1.jsonl")
    kept = sum(path.read_bytes().count(b"\n") for path in files)
    said = drive(3, {"three": {"call": "eval", **words, "output": str(tmp_path / "s")}}, tmp_path)
    assert kept == 6
    assert data(tmp_path / "s") == whole
    assert all("error" not in one for one in said["three"])


def test_the_command_says_it_once(place: Path, words: dict[str, Any], tmp_path: Path) -> None:
    command = ("-m", "moeprune", "eval", place / "model", "-o", tmp_path / "run")
    both = forked.launch(2, *command, "--tasks", words["tasks"][0], "--device", "cpu")
    outs, errs = zip(*(process.communicate() for process in both), strict=True)
    assert [process.returncode for process in both] == [0, 0], errs
    assert "".join(outs).count("moeprune compare") == 1
    assert "".join(errs).count("warning: task 'letters'") == 1
    assert (tmp_path / "run" / "run.json").is_file()

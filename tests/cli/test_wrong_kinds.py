"""Every command given every wrong kind of file: one line that says what it is and the way out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from moeprune.cli.main import main

# What lies under each name in the folder of the job, and the words that tell it from the others.
KINDS = {
    "stats.safetensors": "stats",
    "plan.json": "plan",
    "analysis.json": "analysis",
    "out": "exported model",
    "out/moeprune.json": "record of an export",
    "out/README.md": "text file",
    "model": "model",
    "model/model.safetensors": "weights of a model",
    "model/config.json": "config of a model",
    "run": "run folder",
    "stats.generations.jsonl": "rows of JSON",
    "recipe.toml": "recipe",
    "must.json": "JSON file",
    "text.jsonl": "rows of JSON",
    "text.txt": "text file",
    "folder": "empty folder",
    "empty": "empty file",
    "binary": "binary file",
    "cut.safetensors": "stats cut short",
    "cut-header.safetensors": "safetensors file cut short",
    "cut.json": "JSON file cut short",
    "cut-late.json": "plan cut short",
    "missing": "",
}
ASKED = "--chat-template off"
# A place on the command line: arguments around FILE, what is right there, the way out elsewhere.
SLOTS: Mapping[str, tuple[str, set[str], str]] = {
    "inspect": ("inspect FILE", {"model", "out"}, "older"),
    "calibrate": ("calibrate FILE -o o --domain w=text.jsonl", {"model", "out"}, "older"),
    "domain": (
        "calibrate model -o o --domain w=FILE",
        {"text.jsonl", "text.txt", "stats.generations.jsonl"},
        "builtin:NAME",
    ),
    "recipe": ("calibrate model -o o --recipe FILE", {"recipe.toml"}, "recipe"),
    "generations": (
        "calibrate model -o o --mode decode --generations FILE",
        {"stats.generations.jsonl", "text.jsonl", "must.json"},  # rows in form
        "rite one|jsonl|'prompt'|check the path",
    ),
    "merge": ("merge FILE -o o", {"stats.safetensors"}, "calibrat"),
    "merge with": (
        "merge stats.safetensors FILE -o o",
        {"stats.safetensors"},  # the same once more is test_merge_stage's
        "calibrat",
    ),
    "plan": ("plan FILE -o o --method reap --ratio 0.25", {"stats.safetensors"}, "calibrat"),
    "plans": ("plan FILE -o p{ratio} --ratio 0.25,0.5", {"stats.safetensors"}, "calibrat"),
    "must-keep": (
        "plan stats.safetensors -o o --method reap --ratio 0.25 --must-keep FILE",
        {"must.json"},
        "like {",
    ),
    "model": (
        "plan stats.safetensors -o o --method evoesap --ratio 0.25 --quick --model FILE",
        {"model"},
        "older|Name the model",
    ),
    "show": ("plan show FILE", {"plan.json"}, "moeprune plan"),
    "diff": ("plan diff FILE plan.json", {"plan.json"}, "moeprune plan"),
    "diff with": ("plan diff plan.json FILE", {"plan.json"}, "moeprune plan"),
    "analyse": ("analyse FILE -o o", {"stats.safetensors"}, "calibrat"),
    "analyse with": ("analyse stats.safetensors FILE -o o", {"plan.json"}, "moeprune plan"),
    "export": ("export FILE -o o --plan plan.json", {"model"}, "older|Use the model"),
    "stream": ("export FILE -o o --plan plan.json --stream", set(), "older|Leave it out"),
    "export plan": ("export model -o o --plan FILE", {"plan.json"}, "moeprune plan"),
    "verify": ("verify FILE --source model", {"out"}, "export"),
    "source": ("verify out --source FILE", {"model"}, "older"),
    "eval": (f"eval FILE -o o --tasks text.jsonl {ASKED}", {"model", "out"}, "older"),
    "eval plan": (
        f"eval model -o o --tasks text.jsonl --plan FILE {ASKED}",
        {"plan.json"},
        "moeprune plan",
    ),
    "variants": (
        f"eval model -o o --tasks text.jsonl --variants FILE {ASKED}",
        set(),
        "[[variant]]|list of variants",
    ),
    "held-out": (
        f"eval model -o o --held-out w=FILE {ASKED}",
        {"text.jsonl", "text.txt", "stats.generations.jsonl"},
        "builtin:NAME",
    ),
    "push": ("push FILE org/name", {"out"}, "export"),
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each kind, as the commands write them where there is a command for it."""
    from tiny import tiny_checkpoint

    import moeprune
    from moeprune.stages.analyse import analyse

    folder = tmp_path_factory.mktemp("kinds")
    model = tiny_checkpoint("qwen3_moe", folder / "model")
    (folder / "text.txt").write_text("Words in a row.\n")
    (folder / "text.jsonl").write_text('{"text": "Some words to route."}\n' * 4)
    stats = folder / "stats.safetensors"
    moeprune.calibrate(
        model,
        output=stats,
        domains={"w": str(folder / "text.txt")},
        mode="decode",
        max_new_tokens=2,
    )
    (folder / "stats.generations.jsonl").write_text(
        (folder / "stats.generations.jsonl").read_text() * 2
    )
    moeprune.calibrate(
        model, output=stats, overwrite=True, domains={"w": str(folder / "text.jsonl")}
    )
    plan = folder / "plan.json"
    moeprune.plan(stats, output=plan, method="reap", ratio=0.25)
    moeprune.export(model, plan=plan, output=folder / "out")
    analyse(stats, plans=[plan], output=folder / "analysis.json")
    recipe = 'schema = "moeprune.recipe/1"\n[domains.w]\nsource = "text.jsonl"\n'
    (folder / "recipe.toml").write_text(recipe)
    (folder / "must.json").write_text('{"0": [1]}')
    (folder / "run").mkdir()
    (folder / "run" / "run.json").write_text('{"schema": "moeprune.run/1"}')
    (folder / "run" / "samples.jsonl").write_text('{"task": "a", "id": 1, "correct": true}\n')
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "binary").write_bytes(bytes(range(256)) * 40)
    (folder / "cut.safetensors").write_bytes(stats.read_bytes()[:-100])
    (folder / "cut-header.safetensors").write_bytes(stats.read_bytes()[:50])
    (folder / "cut.json").write_bytes(plan.read_bytes()[:200])
    (folder / "cut-late.json").write_bytes(plan.read_bytes()[:-20])
    return folder


@pytest.mark.parametrize("slot", SLOTS)
def test_a_wrong_kind_is_named(
    slot: str, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, right, way_out = SLOTS[slot]
    monkeypatch.chdir(job)
    before = sorted(job.rglob("*"))
    for name, words in KINDS.items():
        if name in right:
            continue
        code = main([word.replace("FILE", str(job / name)) for word in line.split()])
        out, err = capsys.readouterr()
        where = f"{slot} given {name}: {err}"
        assert (code, out) == (2, ""), where
        assert err.startswith("moeprune: ") and err.count("\n") == 1, where
        assert name in err or name in ("out", "model", "stats.safetensors"), where
        assert "Traceback" not in err and "Error" not in err.replace("Errors", ""), where
        # Right in kind, wrong in content; and --stream is refused for any folder.
        if name not in ("out", "model") and not (slot == "stream" and (job / name).is_dir()):
            assert words in err, where
        assert any(hint in err for hint in way_out.split("|")), where
        assert sorted(job.rglob("*")) == before, where


# What writes a file, and the kinds that it may replace: its own, and what takes no time to make.
WRITERS = {
    "plan stats.safetensors -o FILE --method reap --ratio 0.25": {"plan.json"},
    "merge stats.safetensors -o FILE": {"stats.safetensors", "cut.safetensors"},
    "analyse stats.safetensors -o FILE": {"analysis.json"},
    "calibrate model -o FILE --overwrite --domain w=text.jsonl --length 4": {
        "stats.safetensors",
        "cut.safetensors",
    },
    "export model -o FILE --plan plan.json": set(),
    f"eval model -o FILE --overwrite --tasks text.jsonl {ASKED}": {"run"},
}
CHEAP = {"out/README.md", "must.json", "text.txt", "empty", "binary", "cut.json", "missing"}


@pytest.mark.parametrize("line", WRITERS)
def test_no_file_of_another_kind_is_written_over(
    line: str, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(job)
    before = {path: path.read_bytes() for path in job.rglob("*") if path.is_file()}
    for name, words in KINDS.items():
        if name in WRITERS[line] | CHEAP | {"cut-header.safetensors", "cut-late.json"}:
            continue
        code = main([word.replace("FILE", str(job / name)) for word in line.split()])
        out, err = capsys.readouterr()
        where = f"{line} onto {name}: {err}"
        assert (code, out, err.count("\n")) == (2, "", 1), where
        folder_or_input = (job / name).is_dir() or "is read" in err or "itself" in err
        assert folder_or_input or "exists" in err or words in err, where
    assert {path: path.read_bytes() for path in job.rglob("*") if path.is_file()} == before


def test_a_result_takes_the_place_of_an_earlier_one(job: Path, tmp_path: Path) -> None:
    for old in ("plan.json", "cut-late.json", "text.txt", "empty"):
        place = tmp_path / "p.json"
        place.write_bytes((job / old).read_bytes())
        stats = str(job / "stats.safetensors")
        code = main(["plan", stats, "-o", str(place), "--method", "reap", "--ratio", "0.25"])
        assert code == 0 and place.read_bytes() == (job / "plan.json").read_bytes(), old

"""An evaluation that is stopped or killed goes on, to the bytes of one that never was."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import forked
import pytest
from killing import PRELUDE, After
from plans import plan_keeping
from questions import choosing, every_kind, text
from tiny import tiny_checkpoint

import moeprune
from moeprune.errors import MismatchError, OutputError, RunError, StoppedError


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, tiny: Any) -> dict[str, Any]:
    """Every kind of task, text, and two variants."""
    folder = tmp_path_factory.mktemp("asked")
    return {
        "tasks": every_kind(folder, 5),
        "corpus": {"text": text(folder / "t.jsonl")},
        "chunk": 60,
        "variants": {"ganz": None, "剪": plan_keeping(tiny("qwen3_moe"), [range(9)] * 3)},
        "batch_size": 4,
        "device": "cpu",
    }


def data(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_stopped_after_every_batch(words: dict[str, Any], tiny: Any, tmp_path: Path) -> None:
    """One batch a run: as many stops as there are batches, and each run does one."""
    model = tiny("qwen3_moe")
    moeprune.eval(model, output=tmp_path / "whole", **words)
    stops: list[str] = []
    first: list[int] = []
    while not (tmp_path / "runs").exists():
        reports: list[int] = []
        try:
            moeprune.eval(
                model,
                output=tmp_path / "runs",
                stop=After(1),
                on_progress=lambda report, to=reports: to.append(report.done),
                **words,
            )
        except StoppedError as stopped:
            stops.append(str(stopped))
            assert stopped.exit_code == 130
            assert "runs.progress holds them: the same command goes on from there" in stops[-1]
            assert reports[-1] > reports[0] == (first[-1] if first else 0)
            first.append(reports[-1])
    assert len(set(stops)) == len(stops) > 15
    assert data(tmp_path / "runs") == data(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "whole"]


def test_without_an_output_nothing_is_promised(words: dict[str, Any], tiny: Any) -> None:
    with pytest.raises(StoppedError, match="nothing is kept, as no output was named"):
        moeprune.eval(tiny("qwen3_moe"), stop=lambda: True, **words)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"limit": 2}, "--limit"),
        ({"shots": 0}, "--shots"),
        ({"chunk": 61}, "--chunk"),
        ({"chunks": 1}, "--chunks"),
        ({"batch_size": 5}, "--batch-size"),
        ({"dtype": "bfloat16"}, "--dtype"),
        ({"max_new_tokens": 7}, "--max-new-tokens"),
        ({"corpus": {"t": "builtin:math"}}, "task perplexity-tuning"),
        ({"variants": {"ganz": None}}, "list of variants"),
        ({"model": "seed"}, "model"),
    ],
    ids=str,
)
def test_progress_of_another_request(
    change: dict[str, Any], name: str, words: dict[str, Any], tiny: Any, tmp_path: Path
) -> None:
    model = tiny("qwen3_moe")
    with pytest.raises(StoppedError):
        moeprune.eval(model, output=tmp_path / "s", stop=After(3), **words)
    before = data(tmp_path / "s.progress")
    if "model" in change:
        model = tiny_checkpoint("qwen3_moe", tmp_path / "seed", seed=1)
        change = {"variants": {"ganz": None, "剪": plan_keeping(model, [range(9)] * 3)}}
    with pytest.raises(MismatchError, match=f"another {name}.*--no-resume") as caught:
        moeprune.eval(model, output=tmp_path / "s", **{**words, **change})
    assert "\n" not in str(caught.value)
    assert data(tmp_path / "s.progress") == before
    moeprune.eval(model, output=tmp_path / "s", resume=False, **{**words, **change})
    assert not (tmp_path / "s.progress").exists()


def test_questions_that_changed_meanwhile(tiny: Any, tmp_path: Path) -> None:
    file = choosing(tmp_path / "mine.jsonl", 5)
    words: dict[str, Any] = {"tasks": file, "chat_template": False, "device": "cpu"}
    with pytest.raises(StoppedError):
        moeprune.eval(
            tiny("olmoe"), output=tmp_path / "s", stop=lambda: True, batch_size=2, **words
        )
    file.write_text(file.read_text("utf-8").replace("What", "Which"), "utf-8")
    with pytest.raises(MismatchError, match=r"another task mine.*--no-resume to begin anew"):
        moeprune.eval(tiny("olmoe"), output=tmp_path / "s", batch_size=2, **words)


@pytest.mark.parametrize("damage", ["request", "answers"])
def test_damaged_progress(damage: str, words: dict[str, Any], tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        moeprune.eval(tiny("qwen3_moe"), output=tmp_path / "s", stop=After(3), **words)
    name = "request.json" if damage == "request" else "0-0-of-1.jsonl"
    path = tmp_path / "s.progress" / name
    path.write_bytes(b"{" + path.read_bytes())
    with pytest.raises(RunError, match=r"s\.progress.*--no-resume"):
        moeprune.eval(tiny("qwen3_moe"), output=tmp_path / "s", **words)


def test_two_runs_on_one_output(words: dict[str, Any], tiny: Any, tmp_path: Path) -> None:
    refused = []

    def meanwhile() -> bool:
        with pytest.raises(OutputError, match=r"another evaluation is writing .*s\. Wait") as no:
            moeprune.eval(tiny("qwen3_moe"), output=tmp_path / "s", resume=False, **words)
        refused.append(no)
        return False

    moeprune.eval(tiny("qwen3_moe"), output=tmp_path / "s", stop=meanwhile, **words)
    assert refused
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_disk_that_is_full(words: dict[str, Any], tiny: Any, tmp_path: Path) -> None:
    """What was answered before is kept, and a line that did not fit is no answer."""
    moeprune.eval(tiny("qwen3_moe"), output=tmp_path / "whole", **words)
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, former[1]))
        with pytest.raises(OutputError, match=r"0-0-of-1\.jsonl.*make room, and the same command"):
            moeprune.eval(tiny("qwen3_moe"), output=tmp_path / "s", **words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    answers = tmp_path / "s.progress" / "0-0-of-1.jsonl"
    assert b"\n" in answers.read_bytes()
    moeprune.eval(tiny("qwen3_moe"), output=tmp_path / "s", **words)
    assert data(tmp_path / "s") == data(tmp_path / "whole")


# Kills a run before every n-th step that touches its folder, and at random moments between.
DRIVER = """
model, work, every = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
words = eval(sys.argv[4])

def job():
    moeprune.eval(model, output=work / "s", **words)

def anew():
    moeprune.eval(model, output=work / "s", overwrite=True, **words)

job()  # so that everything is imported before a fork
whole = files()
start = time.perf_counter()
clear()
assert run(job)
seconds = time.perf_counter() - start
assert files() == whole
clear()
assert run(job, dies_at=-1)
steps = int((work.parent / "steps").read_text())
kills = resumed = late = 0
for step in (*range(0, steps - 6, every), *range(steps - 6, steps)):
    clear()
    assert not run(job, dies_at=step)
    kills += 1
    resumed += any(name.endswith("0-0-of-1.jsonl") for name in files())
    if (work / "s").exists():
        late += 1
        found = {name: data for name, data in files().items() if name.startswith("s/")}
        assert found == whole
        assert run(anew)
    else:
        assert run(job)
    assert files() == whole, (kills, sorted(files()))
    assert not [p for p in work.iterdir() if p.name != "s"], sorted(work.iterdir())
chance = random.Random(1)
for _ in range(3):  # killed again and again, and replacing an earlier result
    for _ in range(3):
        run(anew, after=(0.1 + 0.8 * chance.random()) * seconds)
    assert run(anew)
    assert files() == whole
print(kills, resumed, late)
"""


def test_killed_at_many_moments(words: dict[str, Any], tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    plan = words["variants"]["剪"]
    plan.save(tmp_path / "plan.json")
    variants = {"ganz": None, "剪": str(tmp_path / "plan.json")}
    told = {**words, "tasks": words["tasks"][::2], "variants": variants}
    arguments = [str(tiny("qwen3_moe")), str(tmp_path / "work"), "12", repr(told)]
    done = forked.run(["-c", PRELUDE + DRIVER, *arguments])
    assert done.returncode == 0, done.stderr[-3000:]
    kills, resumed, late = map(int, done.stdout.split())
    assert kills >= 8
    assert resumed >= 3
    assert late >= 1

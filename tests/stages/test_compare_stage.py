"""Which runs a comparison is of, named by folder, by file, by several at once."""

from pathlib import Path
from typing import Any

import pytest
from plans import plan_keeping
from questions import every_kind, text
from written_runs import answers, flipped, run

import moeprune
from moeprune.core.run import Run
from moeprune.errors import RunError, UsageError
from moeprune.stages.identify import open_model

RIGHT = "1101110"


def saved(folder: Path, found: Run) -> Path:
    folder.mkdir(parents=True)
    found.save(folder)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder as eval --variants writes it: the model as it is, and two plans."""
    for name, lost, plan in (
        ("native", 0, {}),
        ("mesa", 1, {"plan": {}}),
        ("reap", 3, {"plan": {}}),
    ):
        made = run(name, answers("arc", flipped(RIGHT, lost, 0)), variant=plan)
        saved(tmp_path / "runs" / name, made)
    return tmp_path / "runs"


def lost(found: object) -> dict[str, int]:
    return {one.name: one.tasks["arc"].overall.to_wrong for one in found.variants}  # type: ignore[attr-defined]


def test_a_folder_of_runs_is_compared_with_the_model_as_it_is(runs: Path) -> None:
    found = moeprune.compare(runs)
    assert (found.base, lost(found)) == ("native", {"mesa": 1, "reap": 3})
    again = moeprune.compare(runs / "native", runs)  # the base in it is not compared with itself
    assert lost(again) == {"mesa": 1, "reap": 3} and not again.warnings
    alone = moeprune.compare(str(runs / "mesa"), [str(runs / "reap" / "run.json")])
    assert (alone.base, lost(alone)) == ("mesa", {"reap": 2})


def test_numbers_in_names_are_ordered_as_numbers(tmp_path: Path) -> None:
    wanted = ["größe", "k1-1_k2-2", "k1-1_k2-2_gain-0.25", "k1-1_k2-2_gain-0.5", "k1-1_k2-16"]
    wanted += ["k1-2_k2-2", "k1-010", "k1-10", "k1-10_k2-10", "扫描"]
    for at in (3, 0, 7, 5, 1, 9, 4, 6, 2, 8):
        saved(tmp_path / wanted[at], run(wanted[at], answers("arc", RIGHT), variant={"plan": {}}))
    saved(tmp_path / "native", run("native", answers("arc", RIGHT)))
    assert [one.name for one in moeprune.compare(tmp_path).variants] == wanted


def test_runs_in_memory_and_names_of_their_own(runs: Path) -> None:
    base = Run.load(runs / "native")
    found = moeprune.compare(base, [Run.load(runs / "mesa"), f"pruned=half={runs}/reap"][:1])
    assert lost(found) == {"mesa": 1}
    found = moeprune.compare(f"whole={runs}/native", [f"pruned={runs}/reap"])
    assert (found.base, lost(found)) == ("whole", {"pruned": 3})
    with pytest.raises(UsageError, match="holds 3 runs, and 'all' names one"):
        moeprune.compare(base, [f"all={runs}"])


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path) -> None:
    base = saved(tmp_path / "k=8", run("native", answers("arc", RIGHT)))
    other = saved(tmp_path / "k=4", run("native", answers("arc", flipped(RIGHT, 2, 0))))
    found = moeprune.compare(base, other)
    # Two of one name are told apart by where they lie.
    assert (found.base, lost(found)) == (str(base), {str(other): 2})


def test_names_that_are_alike_are_told_apart() -> None:
    base = run("n", answers("arc", RIGHT))
    others = [run("v", answers("arc", flipped(RIGHT, at, 0))) for at in (1, 2, 3)]
    found = moeprune.compare(base, others)
    assert lost(found) == {"v": 1, "v (2)": 2, "v (3)": 3}


def test_the_base_itself_is_told(runs: Path) -> None:
    found = moeprune.compare(runs / "native", [runs / "native"])
    assert len(found.warnings) == 1 and "is the base itself" in found.warnings[0]
    same = Run.load(runs / "native")
    copy = Run.load(runs / "native")
    assert "is the base itself" in moeprune.compare(same, same).warnings[0]
    assert "exactly as" in moeprune.compare(same, copy).warnings[0]


def test_what_is_not_clear_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"3 runs .*name the base among them"):
        moeprune.compare(runs, runs / "mesa")
    with pytest.raises(UsageError, match="nothing to compare with"):
        moeprune.compare(runs / "native")
    with pytest.raises(UsageError, match="nothing to compare with"):
        moeprune.compare(runs / "native", [])
    with pytest.raises(RunError, match="does not exist"):
        moeprune.compare(runs / "native", tmp_path / "nowhere")
    saved(runs / "other", run("other", answers("arc", RIGHT)))
    with pytest.raises(UsageError, match="of which 2 are of the model as it is"):
        moeprune.compare(runs)


def test_what_eval_writes_of_every_kind_of_task_is_compared(tiny: Any, tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    (tmp_path / "tasks").mkdir()
    tasks = every_kind(tmp_path / "tasks")
    corpus = {"text": text(tmp_path / "t.jsonl")}
    count = open_model(model).facts.num_experts
    plan = plan_keeping(model, [range(1, number) for number in count])
    variants = {"native": None, "pruned": plan, "native again": None}
    asked = {"tasks": tasks, "held_out": corpus, "device": "cpu", "chunk": 50}
    runs = moeprune.eval(model, output=tmp_path / "runs", variants=variants, **asked)
    found = moeprune.compare(tmp_path / "runs" / "native", tmp_path / "runs")
    assert {one.name for one in found.variants} == {"native again", "pruned"}
    by_name = {one.name: one for one in found.variants}
    assert all(part.points == 0 for _, _, part in by_name["native again"].parts())
    assert any(
        "native again gives the same answers and the same logits" in line for line in found.warnings
    )
    assert not any("pruned gives the same" in line for line in found.warnings)
    base, pruned = runs[0], runs[1]
    for task, own in by_name["pruned"].tasks.items():
        pairs = [
            (one.correct, pruned.by_key[one.key].correct)
            for one in base.of_task(task)
            if one.correct is not None
        ]
        lost = sum(bool(one) and not other for one, other in pairs)
        won = sum(bool(other) and not one for one, other in pairs)
        if own.overall.seeds == 1:
            assert (own.overall.to_wrong, own.overall.to_right) == (lost, won)
        assert own.overall.points == pytest.approx(100 * (won - lost) / len(pairs))
    (texts_of,) = by_name["pruned"].perplexity.values()
    nll = [
        sum(row.details["nll"] for row in one.of_task("perplexity-held-out"))
        for one in (base, pruned)
    ]
    assert texts_of.difference == pytest.approx((nll[1] - nll[0]) / texts_of.tokens)

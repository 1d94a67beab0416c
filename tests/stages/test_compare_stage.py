"""Which runs a comparison is of, named by folder, by file, by several at once."""

from pathlib import Path

import pytest
from written_runs import answers, flipped, run

import moeprune
from moeprune.core.run import Run
from moeprune.errors import RunError, UsageError

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

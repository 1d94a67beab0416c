"""Answers are kept as they come, and only what belongs to the same request is gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeprune.core.sample import Sample
from moeprune.errors import MismatchError, OutputError, RunError
from moeprune.observe.launch import Launch
from moeprune.observe.processes import Processes
from moeprune.stages.eval_journal import Answers
from moeprune.stages.together import Work

REQUEST = {"model": "abc", "--limit": 3, "task Größe": ["x", "y"]}


def opened(
    output: Path | None, request: dict[str, object] | None = None, *, resume: bool = True
) -> Answers:
    work = Work(Processes(), expert_parallel=1)
    return Answers.open(output, request or REQUEST, work=work, resume=resume)


def sample(number: int, **more: object) -> Sample:
    return Sample(task="Größe", domain="d", id=f"问-{number}", metrics={"acc": 0.1}, **more)  # type: ignore[arg-type]


def test_answers_come_back(tmp_path: Path) -> None:
    first = opened(tmp_path / "run")
    first.add(0, [sample(1, correct=True), sample(2, details={"a": [1.5, None]})])
    first.add(2, [sample(3)], "mmlu")
    assert first.settle("batch size", 7) == 7
    again = opened(tmp_path / "run")
    assert again.of(0) == {one.key: one for one in first.of(0).values()}
    assert list(again.of(0)) == [("Größe", "问-1", 0), ("Größe", "问-2", 0)]
    assert again.of(1) == {}
    assert again.parts(2) == {"mmlu": (sample(3),)}
    assert again.of(2) == {}
    assert again.settle("batch size", 9) == 7


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_a_kill_left_unfinished(cut: int, tmp_path: Path) -> None:
    opened(tmp_path / "run").add(0, [sample(1)])
    second = opened(tmp_path / "run")
    second.add(0, [sample(2)])
    path = tmp_path / "run.progress" / "0-0-of-1.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    third = opened(tmp_path / "run")
    assert [key[1] for key in third.of(0)] == ["问-1"]
    third.add(0, [sample(2)])
    assert path.read_bytes() == whole


def test_what_other_processes_of_a_launch_have_left_is_read(tmp_path: Path) -> None:
    opened(tmp_path / "run").add(0, [sample(1)])
    folder = tmp_path / "run.progress"
    (folder / "0-0-of-1.jsonl").rename(folder / "0-1-of-3.jsonl")
    assert [key[1] for key in opened(tmp_path / "run").of(0)] == ["问-1"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"--limit": 4}, r"another --limit \(3 then, 4 now\)"),
        ({"model": "abd", "--limit": 4}, r"another model \('abc' then, 'abd' now\)"),
        ({"task Größe": ["x", "z"]}, r"another task Größe"),
        ({"--new": 1}, r"another --new \(None then, 1 now\)"),
    ],
)
def test_another_request(change: dict[str, object], name: str, tmp_path: Path) -> None:
    opened(tmp_path / "run").add(0, [sample(1)])
    with pytest.raises(MismatchError, match=name + ".*--no-resume") as caught:
        opened(tmp_path / "run", {**REQUEST, **change})
    assert "\n" not in str(caught.value)
    assert opened(tmp_path / "run", {**REQUEST, **change}, resume=False).of(0) == {}
    assert not list((tmp_path / "run.progress").glob("0-*"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("request.json", "{"),
        ("request.json", '{"schema": "moeprune.asked/9", "request": {}, "settled": {}}'),
        ("request.json", '{"schema": "moeprune.asked/1", "request": 3, "settled": {}}'),
        ("request.json", '{"schema": "moeprune.stats/1"}'),
        ("0-0-of-1.jsonl", "nonsense\n"),
        ("0-0-of-1.jsonl", '{"samples": [{"task": "a"}], "part": null}\n'),
        ("0-0-of-1.jsonl", '{"samples": 3, "part": null}\n'),
        ("0-0-of-1.jsonl", '{"samples": []}\n'),
        ("0-0-of-1.jsonl", "[]\n"),
        ("0-0-of-1.jsonl", "\udcff\n"),
    ],
)
def test_damaged_progress(name: str, text: str, tmp_path: Path) -> None:
    opened(tmp_path / "run").add(0, [sample(1)])
    path = tmp_path / "run.progress" / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=r"run\.progress.*--no-resume") as caught:
        opened(tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert opened(tmp_path / "run", resume=False).of(0) == {}


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run.progress"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    for resume in (True, False):
        with pytest.raises(OutputError, match="not what an interrupted evaluation leaves"):
            opened(tmp_path / "run", resume=resume)
    assert (folder / "thesis.txt").read_text() == "years of work"
    (tmp_path / "s.progress").write_text("of a calibration")
    with pytest.raises(OutputError, match="not what an interrupted evaluation leaves"):
        opened(tmp_path / "s")


def test_without_an_output_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers = opened(None)
    answers.add(0, [sample(1)])
    answers.settle("batch size", 3)
    answers.remove()
    assert len(answers.of(0)) == 1
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_before_its_first_answer_leaves_nothing(tmp_path: Path) -> None:
    for failure in (RunError("no"), KeyboardInterrupt(), RuntimeError("out of memory")):
        with pytest.raises(type(failure)), opened(tmp_path / "run").beginning():
            raise failure
        assert not list(tmp_path.iterdir())
    opened(tmp_path / "run", {**REQUEST, "--limit": 4})  # the same name serves another request
    with opened(tmp_path / "begun").beginning():
        pass
    assert (tmp_path / "begun.progress").is_dir()


def test_what_holds_an_answer_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run.progress"
    first = opened(tmp_path / "run")
    with pytest.raises(RunError), first.beginning():
        first.add(0, [sample(1)])
        raise RunError("no")
    with pytest.raises(RunError), opened(tmp_path / "run").beginning():
        raise RunError("no")
    assert [key[1] for key in opened(tmp_path / "run").of(0)] == ["问-1"]
    (folder / "0-0-of-1.jsonl").unlink()
    (folder / "replaced").mkdir()  # an older result, on its way out
    with pytest.raises(RunError), opened(tmp_path / "run").beginning():
        raise RunError("no")
    assert {path.name for path in folder.iterdir()} == {"request.json", "replaced"}


@pytest.mark.parametrize(("rank", "stays"), [(0, False), (1, True)])
def test_one_process_that_fails_waits_for_no_other(rank: int, stays: bool, tmp_path: Path) -> None:
    answers = opened(tmp_path / "run")
    crew = Processes(Launch(rank=rank, world=2, local_rank=rank, local_world=2))
    answers._work = Work(crew, expert_parallel=1)
    with pytest.raises(RunError), answers.beginning():
        raise RunError("no")
    assert (tmp_path / "run.progress").exists() is stays

"""A run folder comes back as it was written; whatever is not one is refused in one line."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.core.run import RUN_FILE, SAMPLES_FILE, Run
from moeprune.core.sample import Sample, read_samples
from moeprune.errors import MoePruneError, RunError

KEYS = {
    "task": "mmlu",
    "domain": "algebra",
    "id": "q1",
    "seed": 0,
    "input": "ab",
    "metrics": {"acc": 1.0},
    "correct": True,
    "prediction": "A",
    "answer": "A",
    "truncated": False,
    "tokens": 3,
    "details": {"margin": 0.5},
}
WRONG: dict[str, list[Any]] = {
    "task": [None, 1, True, [], {}],
    "domain": [None, 1, True, [], {}],
    "id": [None, 1, 1.5, True, [], {}],
    "seed": [None, "0", True, 0.0, -1, 1 << 70, [], {}],
    "input": [None, 1, True, [], {}],
    "metrics": [
        *(None, 1, [], "acc"),
        *({"acc": value} for value in (None, True, "1", [1], 10**400, 1e300)),
        *({"acc": value} for value in (float("nan"), float("inf"))),
    ],
    "correct": [0, 1, "yes", 1.0, [], {}],
    "prediction": [1, True, [], {}],
    "answer": [1, True, [], {}],
    "truncated": [0, 1, "no", [], {}],
    "tokens": [None, True, 1.0, "3", -1, 1 << 70, [], {}],
    "details": [None, 1, [], "x", {"a": float("nan")}, {"a": [{"b": float("-inf")}]}],
}

texts = st.text(st.characters(exclude_categories=()), max_size=6)  # lone surrogates too
numbers = st.floats(-1e9, 1e9, allow_nan=False) | st.integers(-(1 << 40), 1 << 40)
plain = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
samples = st.builds(
    Sample,
    task=texts,
    domain=texts,
    id=texts,
    seed=st.integers(0, 1 << 40),
    input=texts,
    metrics=st.dictionaries(texts, numbers, max_size=3),
    correct=st.none() | st.booleans(),
    prediction=st.none() | texts,
    answer=st.none() | texts,
    truncated=st.none() | st.booleans(),
    tokens=st.integers(0, 1 << 40),
    details=st.dictionaries(texts, plain, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(samples, max_size=5, unique_by=lambda sample: sample.key), st.data())
def test_what_was_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Sample], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    tasks = {row.task: {"kind": "letters"} for row in rows}
    names = data.draw(st.permutations(list(tasks)))
    run = Run(
        name=data.draw(texts),
        model=data.draw(st.dictionaries(texts, plain, max_size=2)),
        variant=data.draw(st.dictionaries(texts, plain, max_size=2)),
        tasks={name: tasks[name] for name in names},
        samples=tuple(rows),
        probe=data.draw(st.dictionaries(texts, texts, max_size=2)),
        guards=tuple(data.draw(st.lists(st.dictionaries(texts, plain, max_size=2), max_size=2))),
        provenance=data.draw(st.dictionaries(texts, plain, max_size=2)),
    )
    run.save(folder)
    loaded = Run.load(folder)
    assert loaded == run
    assert list(loaded.tasks) == list(run.tasks)
    before = [(folder / name).read_bytes() for name in (RUN_FILE, SAMPLES_FILE)]
    loaded.save(folder)
    assert [(folder / name).read_bytes() for name in (RUN_FILE, SAMPLES_FILE)] == before


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, values in WRONG.items() for value in values],
    ids=lambda value: repr(value)[:30],
)
def test_a_value_of_a_wrong_type_is_refused_and_named(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / SAMPLES_FILE
    path.write_text(json.dumps(KEYS) + "\n" + json.dumps({**KEYS, "id": "q2", key: value}))
    with pytest.raises(RunError, match="line 2") as caught:
        list(read_samples(path))
    assert key.rstrip("s") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ("1", "not a JSON object"),
        ("null", "not a JSON object"),
        ('{"task": "a", "id": "1"', "not JSON"),
        ('{"task": "a", "task": "b", "id": "1"}', "occurs twice"),
        ('{"task": "a", "id": "1", "metrics": {"x": 1, "x": 2}}', "occurs twice"),
        ('{"task": "a", "id": "1", "colour": 1}', "'colour'"),
        ('{"task": "a"}', "lacks 'id'"),
        ('{"id": "a"}', "lacks 'task'"),
        ('{"task": "a", "id": "1", "tokens": ' + "9" * 5000 + "}", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        (
            '{"task": "a", "id": "1", "details": {"x": ' + "[" * 300 + "]" * 300 + "}}",
            "nest too deeply",
        ),
    ],
)
def test_a_hostile_line_is_refused(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / SAMPLES_FILE
    path.write_text(json.dumps(KEYS) + "\n\n" + line + "\n")
    with pytest.raises(RunError, match="line 3") as caught:
        list(read_samples(path))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_task_and_id_are_needed(tmp_path: Path) -> None:
    path = tmp_path / SAMPLES_FILE
    path.write_text('{"id": "1", "task": "arc"}\r\n')
    assert list(read_samples(path)) == [Sample(task="arc", domain="arc", id="1")]


def test_a_question_answered_twice_cannot_be_joined() -> None:
    row = Sample(task="arc", domain="arc", id="q7", seed=3)
    with pytest.raises(RunError, match="'q7' of task 'arc' \\(seed 3\\) twice"):
        Run(name="x", samples=(row, row))


HEADER_WRONG: dict[str, list[Any]] = {
    "schema": [None, 1, "moeprune.run/2", "moeprune.plan/1", "x"],
    "name": [None, 1, [], {}],
    "model": [None, 1, [], "x", {"a": float("nan")}],
    "variant": [None, [], "x"],
    "tasks": [None, [], {"mmlu": 1}, {"mmlu": []}, {}],
    "order": [None, {}, "mmlu", [1], ["mmlu", 1], ["mmlu", "mmlu"], [], ["other"], [["mmlu"]]],
    "probe": [None, [], {"inputs": 1}, {"inputs": None}],
    "guards": [None, {}, [1], ["x"], [[]]],
    "provenance": [None, [], {"time": float("inf")}],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, values in HEADER_WRONG.items() for value in values],
    ids=lambda value: repr(value)[:30],
)
def test_a_wrong_header_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    run = Run(
        name="base",
        tasks={"mmlu": {"kind": "letters"}},
        samples=(Sample(task="mmlu", domain="x", id="1"),),
    )
    run.save(tmp_path)
    assert Run.load(tmp_path) == run
    body = json.loads((tmp_path / RUN_FILE).read_text())
    (tmp_path / RUN_FILE).write_text(json.dumps({**body, key: value}))
    with pytest.raises(RunError) as caught:
        Run.load(tmp_path)
    assert RUN_FILE in str(caught.value)
    assert "\n" not in str(caught.value)
    del body[key]
    (tmp_path / RUN_FILE).write_text(json.dumps(body))
    with pytest.raises(RunError, match=key):
        Run.load(tmp_path)


def test_folders_that_are_no_run_are_refused(tmp_path: Path) -> None:
    run = Run(name="base", tasks={"t": {}}, samples=(Sample(task="t", domain="t", id="1"),))
    run.save(tmp_path)
    (tmp_path / SAMPLES_FILE).write_text('{"task": "other", "id": "1"}\n')
    with pytest.raises(RunError, match="'other'"):
        Run.load(tmp_path)
    (tmp_path / SAMPLES_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match="cannot be read"):
        Run.load(tmp_path)
    (tmp_path / SAMPLES_FILE).unlink()
    with pytest.raises(RunError, match="does not exist"):
        Run.load(tmp_path)
    (tmp_path / SAMPLES_FILE).mkdir()
    with pytest.raises(RunError, match="cannot be read"):
        Run.load(tmp_path)
    with pytest.raises(RunError, match="does not exist"):
        Run.load(tmp_path / "nowhere")
    (tmp_path / RUN_FILE).write_text("[]")
    with pytest.raises(RunError, match="run"):
        Run.load(tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_a_damaged_file_never_brings_anything_but_a_run_error(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    draw = random.Random(seed)
    folder = tmp_path_factory.getbasetemp()
    run = Run(
        name="b",
        tasks={"t": {"kind": "x"}},
        samples=tuple(Sample(task="t", domain="d", id=str(row)) for row in range(2)),
        guards=({"name": "n"},),
    )
    run.save(folder)
    path = folder / draw.choice((RUN_FILE, SAMPLES_FILE))
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(data))
        match draw.randrange(3):
            case 0:
                data[place] = draw.choice(b'{}[]",:0189-NaIeftun\\\x00\xff\n')
            case 1:
                del data[place : place + draw.randint(1, 9)]
                data = data or bytearray(b"{")
            case _:
                data[place:place] = data[draw.randrange(len(data)) :][:20]
    path.write_bytes(bytes(data))
    try:
        loaded = Run.load(folder)
    except MoePruneError as error:
        assert "\n" not in str(error)
    else:
        loaded.save(folder)

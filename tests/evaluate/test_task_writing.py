"""What is written is what is read, whatever is in it; and anything else is refused in one line."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moeprune.errors import UsageError
from moeprune.evaluate.tasks.reading import read_tasks
from moeprune.evaluate.tasks.rows import KEYS
from moeprune.evaluate.tasks.writing import jsonl_text, toml_text

WORDS = st.text(
    alphabet=st.one_of(
        st.sampled_from("\"'\\\n\r\t\b\f\x7f\x1b#=[]{}\u2028\u0085日😀"),
        st.characters(blacklist_categories=["Cs"]),
    ),
    max_size=12,
)
PROTOCOLS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["letters", "cloze"])},
    optional={
        "description": WORDS,
        "question": WORDS.map(lambda text: f"{text}{{question}}"),
        "option": WORDS,
        "delimiter": WORDS,
        "separator": WORDS,
        "shots": st.integers(0, 2),
        "chat_template": st.booleans(),
        "system": WORDS,
        "stop": st.lists(WORDS.filter(bool), max_size=3),
        "temperature": st.just(0.0) | st.floats(1e-6, 2),
        "seed": st.integers(0, 2**31),
        "expected": st.floats(0, 1),
    },
)
CHOICES = st.lists(WORDS.filter(str.strip), min_size=2, max_size=4)


def read(folder: str, **files: str) -> Any:
    for name, text in files.items():
        path = Path(folder) / {"task": "t.toml", "questions": "q.jsonl"}[name]
        path.write_bytes(text.encode())
    return read_tasks(Path(folder) / ("t.toml" if "task" in files else "q.jsonl"))[0]


@given(
    protocol=PROTOCOLS,
    name=WORDS.filter(str.strip),
    texts=st.lists(st.tuples(WORDS.filter(str.strip), CHOICES), min_size=3, max_size=4),
)
def test_a_task_that_is_written_is_read_as_it_was(
    protocol: dict[str, Any], name: str, texts: list[tuple[str, list[str]]]
) -> None:
    rows = [
        {"question": text, "choices": choices, "answer": at % len(choices)}
        for at, (text, choices) in enumerate(texts)
    ]
    text = toml_text(
        name=name, questions="q.jsonl", shots_from="q.jsonl", protocol=protocol, about="Any."
    )
    with tempfile.TemporaryDirectory() as folder:
        task = read(folder, task=text, questions=jsonl_text(rows))
    found = task.protocol.to_json()
    assert {key: found[key] for key in protocol} == protocol
    assert task.name == name
    assert [question.text for question in task.questions] == [text for text, _ in texts]
    assert [list(question.choices) for question in task.questions] == [each for _, each in texts]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)


@given(rows=st.lists(st.dictionaries(st.sampled_from([*KEYS, "x"]), JSON), max_size=3))
def test_any_rows_are_read_or_refused_in_one_line(rows: list[dict[str, Any]]) -> None:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        try:
            task = read(folder, questions=text)
        except UsageError as problem:
            assert "\n" not in str(problem) and "q.jsonl" in str(problem)
            assert len(str(problem)) < 700
        else:
            assert len(task.questions) == len(rows)


@given(data=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_refused_in_one_line(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("t.toml", "q.jsonl"):
            path = Path(folder) / name
            path.write_bytes(data)
            try:
                read_tasks(path)
            except UsageError as problem:
                assert "\n" not in str(problem) and name in str(problem)
            else:
                raise AssertionError(f"{data!r} was read as a task")

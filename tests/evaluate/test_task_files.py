"""Task files as people write them, and as they get them wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from moeprune.core.tasks import Protocol
from moeprune.errors import UsageError
from moeprune.evaluate.tasks.reading import read_tasks
from moeprune.kinds import kind_of

DEMO = Path(__file__).resolve().parents[2] / "calibration" / "demo" / "questions"
HEAD = 'schema = "moeprune.task/1"\nquestions = "q.jsonl"\n'
PAIR = {"question": "1?", "choices": ["one", "two"], "answer": 0}


def rows(path: Path, *items: Any) -> Path:
    lines = (item if isinstance(item, str) else json.dumps(item) for item in items)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def toml(folder: Path, text: str = "", name: str = "t.toml") -> Path:
    path = folder / name
    path.write_text(HEAD + text, "utf-8")
    return path


def refused(source: Any, **overrides: Any) -> str:
    with pytest.raises(UsageError) as caught:
        read_tasks(source, overrides=overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_questions_of_the_demo_work_as_they_are() -> None:
    tasks = read_tasks([DEMO])
    names = ["code", "commonsense", "instruction", "knowledge", "math", "science"]
    assert [task.name for task in tasks] == names
    for task in tasks:
        lines = (DEMO / f"{task.name}.jsonl").read_text().splitlines()
        for question, row in zip(task.questions, map(json.loads, lines), strict=True):
            assert (question.id, question.text) == (row["id"], row["prompt"])
            assert question.answers == (row["answer"],) and question.domain == task.name
        assert task.protocol == Protocol(kind="generate")


def test_every_form_of_a_row(tmp_path: Path) -> None:
    rows(
        tmp_path / "choices.jsonl",
        {**PAIR, "id": 7, "domain": "d"},
        "",
        {**PAIR, "answer": "b"},
        {**PAIR, "answer": "two", "solution": None},
        {"prompt": "true?", "choices": ["True", "False"], "answer": True},
        {"prompt": "how many?", "choices": [1, 2.5], "answer": "2.5"},
    )
    rows(
        tmp_path / "words.jsonl",
        {"prompt": "6 * 7", "answer": 42, "solution": "It is 42."},
        {"question": "either", "answer": ["a", 1]},
        {"question": "sure", "answer": False},
        '{"question": "half \\ud800 a pair\\u2028", "answer": "x"}',
    )
    rows(
        tmp_path / "contexts.jsonl",
        {"contexts": ["He", "She"], "continuation": "went.", "answer": "She"},
        {"contexts": ["He", "She"], "choices": ["m", "f"], "continuation": "x", "answer": "m"},
    )
    choices, contexts, words = read_tasks(tmp_path)
    assert [task.kind for task in (choices, words, contexts)] == ["letters", "generate", "cloze"]
    assert [question.right for question in choices.questions] == [0, 1, 1, 0, 1]
    assert [question.id for question in choices.questions] == ["7", "3", "4", "5", "6"]
    assert [question.domain for question in choices.questions] == ["d", *["choices"] * 4]
    assert choices.questions[4].choices == ("1", "2.5")
    answers = [question.answers for question in words.questions]
    assert answers == [("42",), ("a", "1"), ("False", "false"), ("x",)]
    assert words.questions[0].shown == "It is 42."
    assert words.questions[3].text == "half ? a pair\u2028"
    assert [question.right for question in contexts.questions] == [1, 0]
    assert contexts.questions[0].choices == ("He", "She")


def test_a_task_file_states_all_of_the_protocol_and_the_command_line_goes_before(
    tmp_path: Path,
) -> None:
    rows(tmp_path / "q.jsonl", *({**PAIR, "question": f"{at}?"} for at in range(9)))
    (tmp_path / "dev").mkdir()
    rows(tmp_path / "dev" / "s.jsonl", *({**PAIR, "question": f"s{at}"} for at in range(9)))
    stated = {
        "kind": "cloze",
        "description": "D {domain}",
        "question": "{question}!",
        "option": "{choice}",
        "delimiter": "",
        "separator": "\n",
        "shots": 3,
        "shots_draw": "seeded",
        "chat_template": True,
        "thinking": False,
        "effort": "low",
        "system": "S",
        "max_new_tokens": 9,
        "stop": ["\n", "Q:"],
        "extract": "regex:(a)",
        "ignore_case": True,
        "temperature": 1,
        "length": 64,
        "limit": 4,
        "seed": 5,
        "expected": 0.5,
    }
    assert set(stated) == set(Protocol.names())
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in stated.items())
    path = toml(tmp_path, f'name = "My task"\nshots_from = "dev/s.jsonl"\nignore = ["u"]\n{lines}')
    (task,) = read_tasks(path)
    assert task.name == "My task" and task.protocol.to_json() == stated
    assert len(task.questions) == 4 and task.questions[0].domain == "My task"
    assert task.details == {"questions": "q.jsonl", "of": 9, "shots_from": "s.jsonl"}
    (again,) = read_tasks([str(path)], overrides={"limit": 2, "kind": "letters", "shots": None})
    assert again.protocol.to_json() == {**stated, "limit": 2, "kind": "letters"}
    assert set(again.questions) < set(task.questions) and again.sha256 != task.sha256


def test_a_folder_has_every_task_file_and_what_none_of_them_names(tmp_path: Path) -> None:
    rows(tmp_path / "q.jsonl", PAIR)
    rows(tmp_path / "s.jsonl", PAIR)
    rows(tmp_path / "alone.jsonl", PAIR)
    (tmp_path / "notes.txt").write_text("no task")
    toml(tmp_path, 'shots_from = "./s.jsonl"\n', "z.toml")
    toml(tmp_path, "", "b.toml")
    assert [task.name for task in read_tasks(tmp_path)] == ["alone", "b", "z"]
    (tmp_path / "empty").mkdir()
    assert "is an empty folder without a task" in refused(tmp_path / "empty")


def test_choices_may_be_answered_in_words(tmp_path: Path) -> None:
    rows(tmp_path / "q.jsonl", {**PAIR, "answer": 1})
    (task,) = read_tasks(toml(tmp_path, 'kind = "generate"\n'))
    assert task.protocol.extract == "letter" and task.questions[0].answers == ("B",)
    (task,) = read_tasks(toml(tmp_path, 'kind = "generate"\nextract = "exact"\n'))
    assert task.questions[0].answers == ("two",)


def test_kinds_without_right_and_wrong_need_no_answer(tmp_path: Path) -> None:
    rows(tmp_path / "q.jsonl", {"prompt": "Tell a story."})
    (task,) = read_tasks(toml(tmp_path, 'kind = "degeneration"\n'))
    assert task.questions[0].answers == () and task.questions[0].text == "Tell a story."
    rows(tmp_path / "q.jsonl", {"text": "A story that is read."})
    (task,) = read_tasks(toml(tmp_path, 'kind = "perplexity"\nlength = 64\n'))
    assert task.questions[0].text == "A story that is read." and task.protocol.length == 64
    rows(tmp_path / "q.jsonl", {"prompt": "Tell a story."})
    message = refused(tmp_path / "q.jsonl")
    assert "q.jsonl, line 1 has no 'answer', which kind 'generate' needs" in message
    assert "--degeneration FILE, or kind = 'degeneration'" in message


ROWS = {
    "": "holds no question",
    "[1]": "line 1 is not a question as a JSON object (a list)",
    '{"a": 1': "line 1 is not a question as a JSON object",
    '{"prompt": "x", "prompt": "y", "answer": "z"}': "the key 'prompt' occurs twice",
    "[" * 100_000: "nested too deeply",
    '{"prompt": "x", "answer": NaN}': "holds nan",
    '{"promt": "x", "answer": "y"}': "has 'promt'. Did you mean 'prompt'?",
    '{"passage": "p", "question": "x", "answer": "y"}': "ignore = [KEY] names more",
    '{"question": "x", "prompt": "x", "answer": "y"}': "leave all but one out",
    '{"answer": "y"}': "asks nothing",
    '{"prompt": " ", "answer": "y"}': "asks nothing",
    '{"prompt": "x", "answer": " "}': "'answer' is empty",
    '{"prompt": "x", "answer": []}': "'answer' is empty",
    '{"prompt": "x", "answer": {"a": 1}}': "must be a text",
    '{"prompt": ["x"], "answer": "y"}': "must be a text",
    '{"prompt": "x", "choices": "ab", "answer": 0}': "'choices' must be a list",
    '{"prompt": "x", "choices": [], "answer": 0}': "'choices' must be a list",
    '{"prompt": "x", "choices": ["a"], "answer": 0}': "has one choice",
    '{"prompt": "x", "choices": ["a", "b"]}': "has choices and no 'answer'",
    '{"prompt": "x", "choices": ["a", "b"], "answer": 2}': "choice 2 is right, and there are 2",
    '{"prompt": "x", "choices": ["a", "b"], "answer": -1}': "choice -1 is right",
    '{"prompt": "x", "choices": ["p", "q"], "answer": "1"}': "is none of the 2 choices",
    '{"prompt": "x", "choices": ["p", "q"], "answer": "C"}': "is none of the 2 choices",
    '{"prompt": "x", "choices": ["B", "A"], "answer": "A"}': "fits several choices",
    '{"prompt": "x", "choices": ["p", "p"], "answer": "p"}': "fits several choices",
    '{"prompt": "x", "choices": ["p", true], "answer": 0}': "must be a text",
    '{"contexts": ["x", "y"], "answer": 0}': "no continuation",
    '{"contexts": ["x", "y"], "choices": ["a", "b", "c"], "continuation": "z", "answer": 0}': (
        "has 2 contexts and 3 choices"
    ),
    json.dumps({**PAIR, "choices": [*map(str, range(27))]}): "27 choices and there are 26 letters",
}


@pytest.mark.parametrize(("row", "said"), ROWS.items(), ids=range(len(ROWS)))
def test_a_bad_row_is_one_line_with_file_and_line(row: str, said: str, tmp_path: Path) -> None:
    path = rows(tmp_path / "q.jsonl", row)
    message = refused(path)
    assert said in message and str(path) in message and len(message) < 600
    if row:
        good = rows(tmp_path / "r.jsonl", {**PAIR, "id": "x"}, row)
        assert f"{good}, line 2" in refused(good)


def test_questions_must_fit_the_kind(tmp_path: Path) -> None:
    path = rows(tmp_path / "q.jsonl", PAIR, {"prompt": "x", "answer": "y"})
    assert f"{path}, line 2 has no 'choices', which kind 'letters' needs" in refused(path)
    rows(path, {"contexts": ["x", "y"], "continuation": "z", "answer": 0})
    assert "which only kind 'cloze' scores" in refused(path, kind="letters")
    rows(path, {**PAIR, "choices": ["a", " "]})
    assert "choice 1 is blank" in refused(path, kind="cloze")
    rows(path, {**PAIR, "choices": [*map(str, range(27))], "answer": 3})
    (task,) = read_tasks(path, overrides={"kind": "cloze"})  # no letter is shown
    assert task.questions[0].right == 3
    rows(path, {**PAIR, "id": 1}, {**PAIR, "id": "1"})
    assert f"{path}, line 2 has the id '1' of {path}, line 1" in refused(path)


KEYS = {
    "shot = 5": "has 'shot'. Did you mean 'shots'?",
    "shots = '5'": "shots = '5' is not a whole number",
    "shots = true": "is not a whole number",
    "shots = -1": "must be at least 0",
    "shots = 5": "asks for 5 shots and has 0",
    "limit = 0": "limit 0 must be at least 1",
    "chat_template = 1": "is not true or false",
    "temperature = 'x'": "is not a number",
    "temperature = nan": "must be 0",
    "stop = [1]": "is not a list of texts",
    "stop = ['']": "an empty text",
    "expected = 80": "is no accuracy",
    "extract = 'first'": "no rule of extraction named 'first'",
    "extract = 'regex:('": "is no pattern",
    "question = 'Say:'": "lacks {question}",
    "question = '{quesiton} {question}'": "write {question}",
    "option = '{chioce}'": "write {choice}",
    "name = ''": "is not a text",
    "shots_from = 3": "is not a text",
    "shots_from = 'nowhere.jsonl'": "t.toml: shots_from = 'nowhere.jsonl' does not exist",
    "ignore = 'u'": "is not a list of keys",
    "kind = 3": "kind = 3 is not a text",
    "kind = 'leters'": "no kind of task named 'leters'. Did you mean 'letters'?",
    "a = = 1": "not TOML that can be read",
    "shots_draw = 'last'": "is neither 'first' nor 'seeded'",
}


@pytest.mark.parametrize(("line", "said"), KEYS.items())
def test_a_bad_key_is_one_line_with_its_file(line: str, said: str, tmp_path: Path) -> None:
    rows(tmp_path / "q.jsonl", PAIR)
    path = toml(tmp_path, line)
    message = refused(path)
    assert said in message and str(tmp_path) in message


def test_braces_that_are_no_fields_stay(tmp_path: Path) -> None:
    rows(tmp_path / "q.jsonl", PAIR)
    template = '{question} Write \\boxed{answer} or {} or {"a": 1}'
    (task,) = read_tasks(toml(tmp_path, f"question = {json.dumps(template)}\n"))
    assert task.protocol.question == template


def test_files_of_another_kind_are_named(tmp_path: Path) -> None:
    rows(tmp_path / "q.jsonl", PAIR)
    path = tmp_path / "x.toml"
    path.write_text('schema = "moeprune.recipe/1"\n')
    assert "x.toml is a recipe" in refused(path)
    path.write_text('questions = "q.jsonl"\n')
    assert 'Write schema = "moeprune.task/1" at its top.' in refused(path)
    path.write_text('name = "q"\n')
    assert "schema None" in refused(path)
    path.write_text(HEAD.replace("/1", "/2"))
    assert "has schema moeprune.task/2, this moeprune reads moeprune.task/1" in refused(path)
    path.write_text(HEAD.replace("q.jsonl", "r.jsonl"))
    assert "x.toml: questions = 'r.jsonl' does not exist beside it" in refused(path)
    path.write_text('schema = "moeprune.task/1"\n')
    assert "names no questions" in refused(path)
    assert kind_of(path) == "a task"
    assert "x.jsonl is a task" in refused(path.rename(tmp_path / "x.jsonl"))
    path.write_bytes(b"\xff\xfe\0")
    assert "not UTF-8 text" in refused(path)
    assert "does not exist" in refused(tmp_path / "gone.toml")
    assert "gone' does not exist" in refused(tmp_path / "gone")
    assert "is a text file, not a task" in refused(rows(tmp_path / "notes.txt", "hello there"))
    (tmp_path / "folder.jsonl").mkdir()
    assert "without a task" in refused(tmp_path / "folder.jsonl")
    assert "cannot be read" in refused("a\0b.jsonl")
    assert "no task is named" in refused([])
    assert "the command line has 'shot'" in refused(tmp_path / "q.jsonl", shot=3)


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    path = rows(tmp_path / "q.jsonl", PAIR)
    assert "are both called 'q'" in refused([path, path])
    other = toml(tmp_path, 'name = "q"\n')
    assert f"{path} and {other} are both called 'q'" in refused([path, other])

"""What a model is given equals what lm-evaluation-harness gives it, byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import add_tokenizer
from transformers import AutoTokenizer

from moeprune.core.tasks import Protocol, Question, Task
from moeprune.errors import UsageError
from moeprune.evaluate.tasks.prompts import asked, context_texts, continuation_texts, filled
from moeprune.evaluate.tasks.reading import read_tasks

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking | default(true) %}<no>{% endif %}{% endif %}"
)
CHOICES = [
    {"id": "a", "domain": "x", "question": "Two and {two}?", "choices": ["4", "{question}"]},
    {"id": "b", "domain": "x", "question": "Größe\nof ½?", "choices": ["klein", "groß", " mid"]},
    {"id": "c", "domain": "y", "question": "100 % {} of {0}", "choices": ["{{a}}", "%s"]},
    {"id": "d", "domain": "y", "question": "日本語の問い", "choices": ["東京", "大阪"]},
    {"id": "e", "domain": "x", "question": "last", "choices": ["yes", "no"]},
]
LETTERS = (
    "{{question}}\\n{% for c in choices %}{{'ABCDEFG'[loop.index0]}}. {{c}}\\n{% endfor %}Answer:"
)
DESCRIPTION = "Questions with one right answer.\n\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = AutoTokenizer.from_pretrained(add_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    made.chat_template = TEMPLATE
    return made


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def theirs(folder: Path, body: str, *, delimiter: str, separator: str) -> Any:
    """A local task of lm-eval on ``questions.jsonl`` with ``shots.jsonl``."""
    from lm_eval.tasks import TaskManager

    text = f"""
task: local
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder / "questions.jsonl"}
    train: {folder / "shots.jsonl"}
  cache_dir: {folder / "cache"}
test_split: test
fewshot_split: train
fewshot_config:
  sampler: first_n
target_delimiter: {json.dumps(delimiter)}
fewshot_delimiter: {json.dumps(separator)}
{body}
"""
    (folder / "local.yaml").write_text(text, "utf-8")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return manager.load("local")["tasks"]["local"]


def chat(tokenizer: Any, **told: Any) -> Any:
    """As lm-eval's HFLM applies a chat template."""

    def apply(history: list[dict[str, str]], *, add_generation_prompt: bool = True) -> str:
        return tokenizer.apply_chat_template(
            history, tokenize=False, add_generation_prompt=add_generation_prompt, **told
        )

    return apply


FORMS = {
    "letters": ("multiple_choice", LETTERS, "{{['A','B','C','D'][:choices|length]}}", "{{answer}}"),
    "cloze": ("multiple_choice", "{{question}}", "{{choices}}", "{{answer}}"),
    "generate": ("generate_until", "{{question}}", None, "{{solution}}"),
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(
    ("delimiter", "separator", "description"),
    [(" ", "\n\n", DESCRIPTION), ("\n-> ", "\n###\n", "No space after this."), ("", "", "")],
)
def test_contexts_and_continuations_are_lm_evals(
    kind: str, delimiter: str, separator: str, description: str, tmp_path: Path, tokenizer: Any
) -> None:
    output_type, text, choice, target = FORMS[kind]
    rows = [{**row, "answer": at % 2, "solution": f"so {at}!"} for at, row in enumerate(CHOICES)]
    if kind == "generate":
        rows = [{**row, "answer": [f"{at}"]} for at, row in enumerate(rows)]
        rows = [{key: row[key] for key in row if key != "choices"} for row in rows]
    write_rows(tmp_path / "questions.jsonl", rows[:2])
    write_rows(tmp_path / "shots.jsonl", rows[2:])
    body = f'output_type: {output_type}\ndoc_to_text: "{text}"\ndoc_to_target: "{target}"\n'
    body += f"description: {json.dumps(description)}\n"
    if choice:
        body += f'doc_to_choice: "{choice}"\n'
    task = theirs(tmp_path, body, delimiter=delimiter, separator=separator)
    stated = {"kind": kind, "delimiter": delimiter, "separator": separator, "shots": 3}
    (tmp_path / "ours.toml").write_text(
        'schema = "moeprune.task/1"\nquestions = "questions.jsonl"\nshots_from = "shots.jsonl"\n'
        f"description = {json.dumps(description)}\n"
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in stated.items())
    )
    for on, told in ((False, {}), (True, {}), (True, {"enable_thinking": False})):
        for system in ("", "You answer.", "You answer.\n"):
            overrides = {
                "chat_template": on,
                "system": system,
                "thinking": False if told else None,
            }
            (ours,) = read_tasks([tmp_path / "ours.toml"], overrides=overrides)
            docs = list(task.test_docs())
            assert len(docs) == len(ours.questions) == 2
            for doc, question in zip(docs, ours.questions, strict=True):
                want = task.fewshot_context(
                    doc,
                    3,
                    system_instruction=(system or None) if on else None,
                    apply_chat_template=on,
                    fewshot_as_multiturn=on,
                    chat_template=chat(tokenizer, **told) if on else None,
                )
                assert context_texts(ours, question, tokenizer=tokenizer) == (want,)
                if kind != "generate":
                    asks = task.construct_requests(doc, want, apply_chat_template=on)
                    assert [ask.arguments for ask in asks] == [
                        (want, end) for end in continuation_texts(ours, question)
                    ]


def test_choices_in_the_text_are_asked_as_lm_eval_asks_winogrande(
    tmp_path: Path, tokenizer: Any
) -> None:
    rows = [
        {
            "contexts": [f"The cup {at} did not fit the box, as the cup", f"The box {at}"],
            "choices": ["cup", "box"],
            "continuation": f"was too big ({at}).",
            "answer": at % 2,
        }
        for at in range(5)
    ]
    write_rows(tmp_path / "questions.jsonl", rows[:2])
    write_rows(tmp_path / "shots.jsonl", rows[2:])
    body = (
        'output_type: multiple_choice\ndoc_to_text: "{{answer}}"\ndoc_to_choice: "contexts"\n'
        'doc_to_target: "{{continuation}}"\n'
    )
    task = theirs(tmp_path, body, delimiter=" ", separator="\n\n")
    (tmp_path / "ours.toml").write_text(
        'schema = "moeprune.task/1"\nquestions = "questions.jsonl"\nshots_from = "shots.jsonl"\n'
        "shots = 2\n"
    )
    for on in (False, True):
        (ours,) = read_tasks([tmp_path / "ours.toml"], overrides={"chat_template": on})
        assert ours.kind == "cloze"
        for doc, question in zip(task.test_docs(), ours.questions, strict=True):
            want = task.fewshot_context(
                doc,
                2,
                apply_chat_template=on,
                fewshot_as_multiturn=on,
                chat_template=chat(tokenizer) if on else None,
            )
            assert list(context_texts(ours, question, tokenizer=tokenizer)) == want
            asks = task.construct_requests(doc, want, apply_chat_template=on)
            ends = continuation_texts(ours, question)
            assert [ask.arguments for ask in asks] == list(zip(want, ends, strict=True))


TEXTS = st.text(
    alphabet=st.sampled_from("{}%\\$\n \u2028é日questionoptionsletterchoice0"), min_size=1
)


@given(text=TEXTS, choices=st.lists(TEXTS, min_size=2, max_size=6), domain=TEXTS)
def test_templates_fill_in_once_whatever_is_filled_in(
    text: str, choices: list[str], domain: str
) -> None:
    question = Question(id="1", domain=domain, text=text, choices=tuple(choices), right=0)
    protocol = Protocol(
        kind="letters", question="<{domain}>{question}|{options}|{x}{{}", option="{letter}:{choice}"
    )
    options = "\n".join(f"{'ABCDEF'[at]}:{choice}" for at, choice in enumerate(choices))
    assert asked(question, protocol) == f"<{domain}>{text}|{options}|{{x}}{{{{}}"


@given(template=TEXTS, value=TEXTS)
def test_filling_in_is_replacing_and_nothing_else(template: str, value: str) -> None:
    assert filled(template, {"choice": value}) == value.join(template.split("{choice}"))


def test_a_template_that_refuses_a_role_is_one_line(tokenizer: Any) -> None:
    refusing = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    refusing.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
        + TEMPLATE
    )
    question = Question(id="q", domain="d", text="x", answers=("y",))
    protocol = Protocol(kind="generate", chat_template=True, system="Be brief.")
    task = Task(name="t", protocol=protocol, questions=(question,))
    with pytest.raises(UsageError, match=r"question 'q'.*no system here.*system, description"):
        context_texts(task, question, tokenizer=refusing)


def test_the_day_stands_still_in_templates(tokenizer: Any) -> None:
    dated = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    dated.chat_template = "{{ strftime_now('%Y') }}" + TEMPLATE
    question = Question(id="q", domain="d", text="x", answers=("y",))
    protocol = Protocol(kind="generate", chat_template=True)
    task = Task(name="t", protocol=protocol, questions=(question,))
    assert context_texts(task, question, tokenizer=dated)[0].startswith("2025<|im_start|>user")
    dated.chat_template = {"tool_use": "tools", "default": dated.chat_template}
    assert context_texts(task, question, tokenizer=dated)[0].startswith("2025<|im_start|>user")


@pytest.mark.parametrize("kind", ["letters", "cloze", "generate", "degeneration"])
def test_choices_are_shown_solved_by_every_kind(kind: str, tmp_path: Path) -> None:
    rows = [{**row, "answer": 1} for row in CHOICES]
    write_rows(tmp_path / "questions.jsonl", rows)
    (tmp_path / "t.toml").write_text(
        'schema = "moeprune.task/1"\nquestions = "questions.jsonl"\n'
        f'shots_from = "questions.jsonl"\nshots = 1\nkind = "{kind}"\n'
    )
    (task,) = read_tasks(tmp_path / "t.toml")
    (text,) = context_texts(task, task.questions[4], tokenizer=None)
    if kind == "cloze":
        assert text == "Two and {two}? {question}\n\nlast"
    else:
        right = "{question}" if kind == "degeneration" else "B"
        assert text == (
            f"Two and {{two}}?\nA. 4\nB. {{question}}\nAnswer: {right}\n\n"
            "last\nA. yes\nB. no\nAnswer:"
        )

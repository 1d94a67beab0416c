"""Each layout, against what lm-evaluation-harness's own task makes of the same rows."""

import copy
import importlib
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from datasets import Dataset, DatasetDict
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml
from published_rows import GPQA, HELLASWAG, PUBLISHED, Rows

from moeprune import plugins
from moeprune.core.tasks import Protocol, Task
from moeprune.errors import UsageError
from moeprune.evaluate import layouts
from moeprune.evaluate.tasks.draws import needed
from moeprune.evaluate.tasks.fitting import fitted
from moeprune.evaluate.tasks.keys import protocol_of
from moeprune.evaluate.tasks.prompts import asked, context_texts, continuation_texts
from moeprune.evaluate.tasks.rows import question_of

THEIRS = {
    "arc": "arc/arc_challenge.yaml",
    "ceval": "ceval/ceval-valid_law.yaml",
    "gpqa": "gpqa/zeroshot/gpqa_diamond_zeroshot.yaml",
    "gsm8k": "gsm8k/gsm8k.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "mmlu": "mmlu/default/mmlu_abstract_algebra.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "piqa": "piqa/piqa.yaml",
    "winogrande": "winogrande/default.yaml",
}
# What is stated otherwise than by our protocol, so that the harness's is asked.
INSTEAD: dict[str, dict[str, Any]] = {
    "ceval": {
        "delimiter": " ",
        "description": "以下是中国关于{domain}的单项选择题，请选出其中的正确答案。\n\n",
    },
    "gsm8k": {"question": "Question: {question}\nAnswer:"},
    "gpqa": {
        "kind": "letters",
        "question": "What is the correct answer to this question:{question}\nChoices:\n{options}\n"
        "Answer:",
        "option": "({letter}) {choice}",
    },
}


def harness(name: str, rows: Rows) -> Any:
    """The harness's task over these rows, in every split."""
    folder = Path(lm_eval.__file__).parent / "tasks"
    config = load_yaml(next(folder.glob(THEIRS[name])))
    for key in ("tag", "group", "dataset_path", "dataset_name", "dataset_kwargs"):
        config.pop(key, None)
    split = Dataset.from_list(copy.deepcopy(rows))
    names = ("train", "validation", "val", "dev", "test")
    config["custom_dataset"] = lambda **_: DatasetDict(dict.fromkeys(names, split))
    config.setdefault("fewshot_config", {})["sampler"] = "first_n"
    return ConfigurableTask(config=config)


def ours(name: str, rows: Rows, *, domain: str | None = None, **stated: Any) -> Task:
    """The same rows, converted."""
    layout = plugins.load(layouts, name)
    protocol = protocol_of({**layout.PROTOCOL, **INSTEAD.get(name, {}), **stated}, name)
    found = []
    for number, row in enumerate(rows, start=1):
        made = layout.convert(row, number)
        if domain:
            made["domain"] = domain
        question = question_of(made, number=number, name=name, where=f"row {number}")
        found.append(fitted(question, protocol, f"row {number}"))
    shots = needed(found, count=protocol.shots, draw="first", seed=0)
    return Task(name=name, protocol=protocol, questions=tuple(found), shots=shots)


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("name", [name for name in THEIRS if name != "gpqa"])
def test_a_layout_asks_what_the_harness_asks(name: str, shots: int) -> None:
    rows = PUBLISHED[name]
    domain = {"mmlu": "abstract algebra", "ceval": "法学"}.get(name)
    task = ours(name, rows, shots=shots, domain=domain)
    theirs = harness(name, rows)
    docs = list(theirs.eval_docs)
    assert len(docs) == len(task.questions) == len(rows)
    for doc, question in zip(docs, task.questions, strict=True):
        # Shots of the split that is asked: the harness leaves a row out of its own shots only where
        # that is the test split, so it is told to here, too.
        theirs.fewshot_cfg.split = theirs.config.test_split = "test"
        want = theirs.fewshot_context(doc, shots)
        context = context_texts(task, question, tokenizer=None)
        assert list(context) == (want if isinstance(want, list) else [want])
        asks = theirs.construct_requests(doc, want)
        if task.kind == "generate":
            assert asks.arguments[0] == context[0]
            assert question.answers[0] == doc["answer"].split("#### ")[1]
            assert question.shown == theirs.doc_to_target(doc)
            continue
        ends = continuation_texts(task, question)
        contexts = context if question.contexts else context * len(ends)
        assert [ask.arguments for ask in asks] == list(zip(contexts, ends, strict=True))
        gold = theirs.doc_to_text(doc) if question.contexts else theirs.doc_to_target(doc)
        assert question.right == int(gold)


def test_gpqa_asks_what_the_harness_asks_in_an_order_of_its_own() -> None:
    task, theirs = ours("gpqa", GPQA), harness("gpqa", GPQA)
    for doc, question in zip(theirs.eval_docs, task.questions, strict=True):
        choices = [doc[f"choice{at}"] for at in (1, 2, 3, 4)]
        # The harness writes one space for two, which may be part of a formula.
        cleaned = [choice.replace("  ", " ") for choice in question.choices]
        assert sorted(cleaned) == sorted(choices)
        assert f"({'ABCD'[choices.index(cleaned[question.right or 0])]})" == doc["answer"]
        mine = {**doc, **{f"choice{at + 1}": choice for at, choice in enumerate(question.choices)}}
        mine["Question"] = doc["Question"].strip()
        assert asked(question, task.protocol) == theirs.doc_to_text(mine)


def test_the_order_of_gpqa_is_fixed_and_every_letter_is_right_at_times() -> None:
    rows = [{**GPQA[0], "Question": f"Q{at}?", "Record ID": f"r{at}"} for at in range(400)]
    rights = [question.right for question in ours("gpqa", rows).questions]
    again = ours("gpqa", list(reversed(rows))).questions
    assert [question.right for question in again] == rights[::-1]
    assert all(70 < rights.count(at) < 130 for at in range(4))  # 100 each; sigma is 8.7
    swapped = [{**row, "Correct Answer": "other"} for row in rows]
    assert [question.right for question in ours("gpqa", swapped).questions] == rights


@pytest.mark.parametrize("name", plugins.names(layouts))
def test_every_layout_states_a_protocol_that_its_rows_fit(name: str) -> None:
    module = plugins.load(layouts, name)
    assert set(module.PROTOCOL) <= set(Protocol.names()) and "shots" in module.PROTOCOL
    assert module.PROTOCOL.get("chat_template") is None  # of the model, so never of the layout
    for source in (module.QUESTIONS, module.SHOTS):
        assert source == "" or source.startswith("hf:")
    task = ours(name, PUBLISHED[name], shots=0)
    assert len({question.id for question in task.questions}) == len(PUBLISHED[name])
    assert f"{name}.py" in {path.name for path in Path(module.__file__ or "").parent.iterdir()}


def test_hellaswag_is_cleaned_of_marks_and_knows_its_source() -> None:
    first, second, third = ours("hellaswag", HELLASWAG).questions
    assert first.text == "Inventing tests: Somebody writes a test on paper. Then anna"
    assert first.choices[3] == " leaves 3." and first.choices[1] == "eats it 1."
    assert second.text.startswith("How to fold a map: How to fold a map. Find a table.")
    assert [one.domain for one in (first, second, third)] == ["wikihow", "wikihow", "activitynet"]


def test_ids_and_domains_are_those_of_the_data() -> None:
    expected = {
        "arc": ("Made_up_0", "arc"),
        "ceval": ("0", "ceval"),
        "gpqa": ("rec0", "Invented physics"),
        "mmlu": ("1", "made up geology"),
        "openbookqa": ("0-0", "openbookqa"),
    }
    for name, (id_, domain) in expected.items():
        first = ours(name, PUBLISHED[name], shots=0).questions[0]
        assert (first.id, first.domain) == (id_, domain)


WITHHELD = {
    "ceval": {"answer": ""},
    "hellaswag": {"label": ""},
    "piqa": {"label": -1},
    "winogrande": {"answer": ""},
    "mmlu": {"answer": -1},
    "arc": {"answerKey": ""},
    "openbookqa": {"answerKey": None},
}


@pytest.mark.parametrize("name", WITHHELD)
def test_withheld_labels_are_refused(name: str) -> None:
    module = importlib.import_module(f"moeprune.evaluate.layouts.{name}")
    with pytest.raises(UsageError, match="the labels of this split are withheld"):
        module.convert({**PUBLISHED[name][0], **WITHHELD[name]}, 1)


@pytest.mark.parametrize("name", plugins.names(layouts))
@pytest.mark.parametrize("value", [None, 7.5, [], {}, "", "\x00", [1], "_", True, 99, "{", b"x"])
def test_any_column_with_anything_in_it_is_converted_or_refused_in_one_line(
    name: str, value: Any
) -> None:
    module = importlib.import_module(f"moeprune.evaluate.layouts.{name}")
    row = PUBLISHED[name][0]
    protocol = protocol_of(module.PROTOCOL, name)
    for column in row:
        changed = {**row, column: value}
        without = {key: row[key] for key in row if key != column}
        for broken in (changed, without):
            try:
                made = module.convert(broken, 1)
                fitted(question_of(made, number=1, name=name, where="w"), protocol, "w")
            except UsageError as problem:
                assert "\n" not in str(problem) and len(str(problem)) < 500


def test_what_other_writers_make_of_the_columns_is_read_too() -> None:
    mmlu = importlib.import_module("moeprune.evaluate.layouts.mmlu")
    row = PUBLISHED["mmlu"][2]
    assert [mmlu.convert({**row, "answer": said}, 1)["answer"] for said in (2, "2", "C")] == [2] * 3
    with pytest.raises(UsageError, match=r"a \.csv has no lists"):
        mmlu.convert({**row, "choices": "['a' 'b']"}, 1)
    arc = importlib.import_module("moeprune.evaluate.layouts.arc")
    with pytest.raises(UsageError, match=r"text and label \(a \.csv has no lists"):
        arc.convert({**PUBLISHED["arc"][0], "choices": "{'text': ['a']}"}, 1)
    with pytest.raises(UsageError, match=r"'4', which is none of 4 choices"):
        mmlu.convert({**row, "answer": "4"}, 1)
    grande = importlib.import_module("moeprune.evaluate.layouts.winogrande")
    row = PUBLISHED["winogrande"][0]
    assert grande.convert({**row, "answer": 2}, 1)["answer"] == 1
    with pytest.raises(UsageError, match=r"no _ with something after it"):
        grande.convert({**row, "sentence": "It was _ "}, 1)
    with pytest.raises(UsageError, match=r"no number after ####"):
        plugins.load(layouts, "gsm8k").convert({"question": "x", "answer": "It is 3."}, 1)

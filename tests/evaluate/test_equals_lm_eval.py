"""Every question gets what lm-evaluation-harness gives it: the same texts, numbers and decisions.

Two models: the embedded one, which knows answers, with one token a character; a random one with a
token a byte and no begin token. Both sides read the same rows; the harness by its own YAML.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_harness import harness_model, harness_samples

from moeprune.core.sample import Sample
from moeprune.core.tasks import Protocol, Question, Task
from moeprune.evaluate.asking import ask, requests_of
from moeprune.evaluate.corpora import corpus_task
from moeprune.evaluate.encoding import Encoder
from moeprune.evaluate.tasks.prompts import context_texts, continuation_texts
from moeprune.observe.load import load_causal_lm, load_tokenizer
from moeprune.observe.writing import writer
from moeprune.packaged import calibration_folder

LOGLIK = 1e-4
LETTERS = "ABCD"
MULTIPLE_CHOICE = {
    "output_type": "multiple_choice",
    "metric_list": [{"metric": name} for name in ("acc", "acc_norm", "acc_bytes")],
}


@pytest.fixture(scope="module", params=["demo", "random"])
def live(request: pytest.FixtureRequest, tiny: Any) -> tuple[Any, Any]:
    path = calibration_folder() / "demo" / "model"
    if request.param == "random":
        path = tiny("qwen3_moe")
    return load_causal_lm(path, dtype="float32"), load_tokenizer(path)


def choice_rows() -> list[dict[str, Any]]:
    texts = ["What is {} + 2?", "Größe {}, naïve 数?", "Which is larger, {} or 5?", "{}\n\n?  "]
    return [
        {
            "id": f"q{number}",
            "text": texts[number % 4].format(number),
            "choices": [str(number + 2), "5", f"né {number}", "a longer choice 数"][
                :: 1 - number % 3 or 1
            ],
            "right": number % 4,
        }
        for number in range(24)
    ]


def asked(
    live: tuple[Any, Any], task: Task, *, max_length: int = 512, batch_size: int | None = None
) -> tuple[Sample, ...]:
    model, tokenizer = live
    requests = requests_of(
        task, encoder=Encoder(tokenizer, max_length=max_length), tokenizer=tokenizer
    )
    write = writer(model, tokenizer)
    return ask(model, task, requests, tokenizer=tokenizer, write=write, batch_size=batch_size)


def task_of(rows: Sequence[Mapping[str, Any]], *, shots: int = 0, **protocol: Any) -> Task:
    questions = tuple(
        Question(
            id=row["id"],
            domain="d",
            text=row["text"],
            choices=tuple(row.get("choices", ())),
            right=row.get("right"),
            answers=(row["answer"],) if "answer" in row else (),
        )
        for row in rows
    )
    return Task(
        name="t",
        protocol=Protocol(shots=shots, **protocol),
        questions=questions[shots:],
        shots=questions[:shots],
    )


def same_choices(
    mine: Sequence[Sample], theirs: Sequence[Mapping[str, Any]], *, logliks: str
) -> float:
    """Check decisions and metrics; the largest difference of log-likelihoods."""
    assert len(mine) == len(theirs) > 0
    apart = 0.0
    for ours, other in zip(mine, theirs, strict=True):
        want = [loglik for loglik, _ in other["filtered_resps"]]
        apart = max(apart, float(np.abs(np.subtract(ours.details[logliks], want)).max()))
        for metric, value in ours.metrics.items():
            assert value == other[metric], (ours.id, metric)
    assert apart < LOGLIK
    return apart


@pytest.mark.parametrize("shots", [0, 3])
def test_letters(shots: int, live: tuple[Any, Any], tmp_path: Path) -> None:
    rows = [{**row, "letter": LETTERS[row["right"]]} for row in choice_rows()]
    lines = "".join(f"\n{letter}. {{{{choices[{n}]}}}}" for n, letter in enumerate(LETTERS))
    theirs = harness_samples(
        harness_model(*live),
        tmp_path,
        {
            **MULTIPLE_CHOICE,
            "description": "Answer: \n\n",
            "doc_to_text": f"{{{{text}}}}{lines}\nAnswer:",
            "doc_to_choice": list(LETTERS),
            "doc_to_target": "letter",
        },
        rows=rows[shots:],
        shots=rows[:shots],
    )
    task = task_of(rows, shots=shots, kind="letters", description="Answer: \n\n")
    for question, other in zip(task.questions, theirs, strict=True):
        (context,) = context_texts(task, question, tokenizer=live[1])
        endings = continuation_texts(task, question)
        assert [(context, ending) for ending in endings] == other["arguments"]
    mine = asked(live, task)
    same_choices(mine, theirs, logliks="logprobs")
    assert [LETTERS.index(sample.prediction or "") for sample in mine] == [
        int(np.argmax([loglik for loglik, _ in other["filtered_resps"]])) for other in theirs
    ]


@pytest.mark.parametrize("max_length", [512, 24])
def test_cloze(max_length: int, live: tuple[Any, Any], tmp_path: Path) -> None:
    rows = [{**row, "said": row["choices"][row["right"]]} for row in choice_rows()]
    theirs = harness_samples(
        harness_model(*live, max_length=max_length),
        tmp_path,
        {
            **MULTIPLE_CHOICE,
            "doc_to_text": "{{text}} A:",
            "doc_to_choice": "choices",
            "doc_to_target": "said",
        },
        rows=rows[2:],
        shots=rows[:2],
    )
    task = task_of(rows, shots=2, kind="cloze", question="{question} A:")
    mine = asked(live, task, max_length=max_length)
    same_choices(mine, theirs, logliks="loglik")
    assert any(sample.details["cut"] for sample in mine) == (max_length == 24)
    decided = [{metric: sample.metrics[metric] for metric in sample.metrics} for sample in mine]
    assert any(one["acc"] != one["acc_norm"] for one in decided)


def test_choices_that_stand_in_the_text(live: tuple[Any, Any], tmp_path: Path) -> None:
    rows = [
        {
            "id": str(number),
            "contexts": [f"Ann met Bo since {name} {number}" for name in ("Ann", "Bo")],
            "continuation": ["was late.", "is here now."][number % 2],
            "right": number % 3 % 2,
        }
        for number in range(12)
    ]
    theirs = harness_samples(
        harness_model(*live),
        tmp_path,
        {
            "output_type": "multiple_choice",
            "metric_list": [{"metric": "acc"}],
            "doc_to_text": "right",
            "doc_to_choice": "contexts",
            "doc_to_target": "continuation",
        },
        rows=rows,
    )
    questions = tuple(
        Question(
            id=row["id"],
            domain="d",
            text="",
            choices=("Ann", "Bo"),
            right=row["right"],
            contexts=tuple(row["contexts"]),
            continuation=row["continuation"],
        )
        for row in rows
    )
    mine = asked(live, Task(name="t", protocol=Protocol(kind="cloze"), questions=questions))
    same_choices(mine, theirs, logliks="loglik")
    assert set(mine[0].metrics) == {"acc"}


@pytest.mark.parametrize("max_length", [512, 60])
def test_written_answers(max_length: int, live: tuple[Any, Any], tmp_path: Path) -> None:
    rows = [
        {
            "id": str(n),
            "text": f"What is {n} + {n % 5}? {'数 é' * (n % 3)}",
            "answer": str(n + n % 5),
        }
        for n in range(30)
    ]
    theirs = harness_samples(
        harness_model(*live, max_length=max_length, batch_size=7),
        tmp_path,
        {
            "output_type": "generate_until",
            "doc_to_text": "{{text}} A:",
            "doc_to_target": "answer",
            "generation_kwargs": {"until": ["\n\n", "3", "Kr4"], "max_gen_toks": 24},
            "filter_list": [
                {
                    "name": "last",
                    "filter": [
                        {"function": "regex", "regex_pattern": "([0-9]+)", "group_select": -1},
                        {"function": "take_first"},
                    ],
                }
            ],
            "metric_list": [{"metric": "exact_match"}],
        },
        rows=rows[2:],
        shots=rows[:2],
    )
    task = task_of(
        rows,
        shots=2,
        kind="generate",
        question="{question} A:",
        stop=("\n\n", "3", "Kr4"),
        max_new_tokens=24,
        extract="regex:([0-9]+)",
    )
    mine = asked(live, task, max_length=max_length, batch_size=5)
    assert len(mine) == len(theirs) == 28
    for ours, other in zip(mine, theirs, strict=True):
        assert [ours.details["text"]] == other["resps"][0], ours.id
        assert (ours.prediction or "[invalid]") == other["filtered_resps"][0]
        assert ours.metrics["exact_match"] == other["exact_match"]
    assert any(sample.details["cut"] for sample in mine) == (max_length == 60)
    assert len({len(sample.details["text"]) for sample in mine}) > 1
    assert {sample.truncated for sample in mine} >= {False}


def test_perplexity(live: tuple[Any, Any], tmp_path: Path) -> None:
    texts = ["Ann met Bo.", "What is 3 + 4? A: 7 " * 9, "é 数\n" * 30, "a" * 32, "b" * 33, "  x "]
    theirs = harness_samples(
        # With its cache, windows of a text that repeats itself get each other's numbers.
        harness_model(*live, max_length=32, logits_cache=False),
        tmp_path,
        {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
        },
        rows=[{"text": text} for text in texts],
    )
    mine = asked(live, corpus_task("corpus", texts, length=32))
    assert len(mine) > len(texts)
    for number, (text, other) in enumerate(zip(texts, theirs, strict=True)):
        windows = [s.details for s in mine if s.details["document"] == f"{number:06}"]
        nll = sum(window["nll"] for window in windows)
        size, words = (sum(window[name] for window in windows) for name in ("bytes", "words"))
        assert abs(nll + other["word_perplexity"][0]) < LOGLIK * max(1, len(windows)), text
        assert (words, size) == (other["word_perplexity"][1], other["bits_per_byte"][1])
        tokens = len(live[1](text)["input_ids"])
        assert sum(window["tokens"] for window in windows) == tokens
        assert max(window["tokens"] for window in windows) <= 32

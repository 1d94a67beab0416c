"""What lm-eval logs, in memory and in its files, becomes the same answers of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeprune.errors import RunError
from moeprune.evaluate.harness.samples import Written, samples_of


def entry(doc_id: int = 0, filter_: str = "none", **values: Any) -> dict[str, Any]:
    body = {
        "doc_id": doc_id,
        "doc": {},
        "target": "1",
        "arguments": [("Q", " a"), ("Q", " b"), ("Q", " c")],
        "resps": [[(-3.0, False)], [(-1.0, False)], [(-2.0, False)]],
        "filtered_resps": [(-3.0, False), (-1.0, False), (-2.0, False)],
        "filter": filter_,
        "metrics": ["acc"],
        "acc": 1.0,
    }
    return {**body, **values}


def written(doc_id: int = 0, filter_: str = "none", **values: Any) -> dict[str, Any]:
    asked = [("Q", {"until": ["\n"], "max_gen_toks": 8})]
    return entry(
        doc_id,
        filter_,
        **{
            "arguments": asked,
            "resps": [["it is 7"]],
            "filtered_resps": ["7"],
            "target": "7",
            "metrics": ["exact_match"],
            "exact_match": 1.0,
            **values,
        },
    )


def test_a_file_of_lm_eval_says_what_it_had_in_memory(tmp_path: Path) -> None:
    from lm_eval.loggers import EvaluationTracker

    logged = [entry(i, acc=float(i % 2), target=i % 3) for i in range(4)]
    in_memory = samples_of(logged, part="choice")
    tracker = EvaluationTracker(output_path=str(tmp_path))
    tracker.general_config_tracker.model_name_sanitized = "m"
    tracker.date_id = "2026-01-02T03-04-05.6"
    tracker.save_results_samples("choice", logged)
    (file,) = tmp_path.glob("**/samples_choice_*.jsonl")
    read = samples_of([json.loads(line) for line in file.open()], part="choice")
    assert read == in_memory
    assert [s.correct for s in read] == [False, True, False, True]
    assert [(s.prediction, s.answer) for s in read] == [("b", "abca"[i]) for i in range(4)]


def test_filters_of_one_question_are_one_answer() -> None:
    logged = [
        written(0, "strict", filtered_resps=["[invalid]"], exact_match=0.0),
        written(1, "strict"),
        written(0, "loose"),
        written(1, "loose", filtered_resps=["8"], exact_match=0.0),
    ]
    first, second = samples_of(logged, part="gsm")
    assert first.metrics == {"exact_match,strict": 0.0, "exact_match,loose": 1.0}
    assert (first.correct, first.prediction) == (False, None)
    assert (second.correct, second.prediction, second.answer) == (True, "7", "7")
    assert first.details == {"judged_by": "exact_match,strict", "text": "it is 7"}
    assert (first.id, first.domain, first.task) == ("0", "gsm", "lm_eval:gsm")
    (of_group,) = samples_of(logged[1::2][:1], part="gsm", whole="maths")
    assert (of_group.id, of_group.domain, of_group.task) == ("gsm/1", "gsm", "lm_eval:maths")


def test_settings_of_generation_are_no_input_and_texts_are() -> None:
    (base,) = samples_of([written()], part="x")
    (same,) = samples_of([written(arguments=[("Q", {"until": []})])], part="x")
    (other,) = samples_of([written(arguments=[("Q ", {"until": []})])], part="x")
    assert base.input == same.input != other.input


@pytest.mark.parametrize(
    ("values", "judge", "correct"),
    [
        ({}, "acc", True),
        ({"metrics": ["acc_norm", "acc"], "acc_norm": 0.0}, "acc", True),
        ({"metrics": ["f1", "exact_match"], "f1": 0.5, "exact_match": 0}, "exact_match", False),
        ({"metrics": ["acc"], "acc": 0.25}, "", None),  # TruthfulQA's mc2: a share, not a verdict
        ({"metrics": ["f1"], "f1": 1.0}, "", None),  # 1 by chance
        ({"metrics": ["passed"], "passed": True}, "passed", True),
        ({"metrics": ["bleu"], "bleu": [("a", "b")]}, "", None),
    ],
)
def test_what_tells_right_from_wrong(
    values: dict[str, Any], judge: str, correct: bool | None
) -> None:
    (sample,) = samples_of([entry(**values)], part="x")
    assert sample.details.get("judged_by", "") == judge
    assert sample.correct is correct


def test_one_fraction_makes_a_metric_no_verdict_for_all() -> None:
    found = samples_of([entry(0), entry(1, acc=0.5)], part="x")
    assert [s.correct for s in found] == [None, None]
    assert [s.metrics for s in found] == [{"acc": 1.0}, {"acc": 0.5}]


def test_mutual_information_asks_twice_and_chooses_once() -> None:
    double = entry()
    values = {
        "arguments": [*double["arguments"], *(("", c) for c in (" a", " b", " c"))],
        "filtered_resps": [*double["filtered_resps"], (-9.0, False), (-8.0, False), (0.0, False)],
        "metrics": ["acc", "acc_mutual_info"],
        "acc_mutual_info": 0.0,
    }
    (sample,) = samples_of([entry(**values)], part="x")
    assert (sample.prediction, sample.details["choices"]) == ("b", 3)


def test_choices_in_the_contexts_are_told_by_their_number() -> None:
    values = {
        "arguments": [("He", " ran."), ("She", " ran.")],
        "filtered_resps": [(-3.0, False), (float("-inf"), False)],
        "target": 0,
    }
    (sample,) = samples_of([entry(**values)], part="x")
    assert (sample.prediction, sample.answer) == ("0", "0")
    assert "scores" not in sample.details, "JSON has no infinity"
    sample.to_line()


def test_lengths_of_written_answers_are_kept() -> None:
    known = {"Q": (Written(5, False), Written(8, True))}
    (twice,) = samples_of([written(resps=[["a", "b"]])], part="x", written=known)
    assert (twice.tokens, twice.truncated) == (13, True)
    found = samples_of([written(0), written(1)], part="x", written=known)
    assert [(s.tokens, s.truncated) for s in found] == [(5, False), (8, True)], "the same prompt"
    (unknown,) = samples_of([written()], part="x")
    assert (unknown.tokens, unknown.truncated) == (0, None)


def test_a_document_answered_twice_and_a_line_of_something_else_are_refused() -> None:
    with pytest.raises(RunError, match="document 3 is answered twice"):
        samples_of([entry(3), entry(3)], part="x")
    with pytest.raises(RunError, match="no 'arguments'"):
        samples_of([{"doc_id": 1}], part="x")

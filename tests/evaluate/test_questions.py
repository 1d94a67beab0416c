"""Questions: one teacher-forced pass says what a real greedy generation says, in any batch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from moeprune.errors import DomainError
from moeprune.evaluate.questions import Question, answer_questions, read_questions
from moeprune.observe.load import load_causal_lm, load_tokenizer
from moeprune.packaged import calibration_folder


@pytest.fixture(scope="module")
def demo() -> tuple[Any, Any]:
    folder = calibration_folder() / "demo" / "model"
    return load_causal_lm(folder, dtype="float32"), load_tokenizer(folder)


def some_questions() -> list[Question]:
    folder = calibration_folder() / "demo" / "questions"
    files = sorted(folder.glob("*.jsonl"))
    assert len(files) == 6
    right = [question for path in files for question in read_questions(path)[:3]]
    # Wrong, cut short and continued answers must be told from right ones.
    wrong = [Question(q.id, q.prompt, q.answer + "x") for q in right[:3]]
    short = [Question(q.id, q.prompt, q.answer[:-1]) for q in right if len(q.answer) > 2]
    return [*right, *wrong, *short]


def generated(model: Any, tokenizer: Any, question: Question) -> bool:
    prompt = torch.tensor([tokenizer(question.prompt)["input_ids"]])
    with torch.inference_mode():
        made = model.generate(
            prompt,
            max_new_tokens=len(question.answer) + 8,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )[0, prompt.shape[1] :].tolist()
    end = made.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in made else len(made)
    return end < len(made) and tokenizer.decode(made[:end]) == question.answer


def test_equals_greedy_generation(demo: tuple[Any, Any]) -> None:
    questions = some_questions()
    asked = answer_questions(*demo, questions)
    assert asked == [generated(*demo, question) for question in questions]
    assert any(asked) and not all(asked)


@pytest.mark.parametrize("batch", [1, 5])
def test_batch_does_not_matter(batch: int, demo: tuple[Any, Any]) -> None:
    questions = some_questions()
    assert answer_questions(*demo, questions, batch=batch) == answer_questions(*demo, questions)


def test_questions_are_held_out() -> None:
    """No held-out prompt occurs in the calibration text, and each has its own id."""
    folder = calibration_folder() / "demo"
    ids = []
    for path in sorted((folder / "questions").glob("*.jsonl")):
        questions = read_questions(path)
        assert len(questions) >= 100
        rows = (folder / "calibration" / path.name).read_text(encoding="utf-8").splitlines()
        asked = {line for row in rows for line in json.loads(row)["text"].splitlines()}
        assert len(asked) > 100
        for question in questions:
            assert question.prompt + question.answer not in asked
        ids += [question.id for question in questions]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"id": "a", "prompt": "b"}'])
def test_bad_rows_name_the_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"id": "a", "prompt": "b", "answer": "c"}\n' + line + "\n")
    with pytest.raises(DomainError, match="line 2"):
        read_questions(path)


def test_no_question(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\n")
    with pytest.raises(DomainError, match="holds no question"):
        read_questions(path)

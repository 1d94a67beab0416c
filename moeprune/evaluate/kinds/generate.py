"""Written answers: an extractor finds the answer in the text, and it is right or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moeprune.core.sample import Sample
from moeprune.core.tasks import Question, Task
from moeprune.evaluate.encoding import Encoder
from moeprune.evaluate.extract import extract, same
from moeprune.evaluate.requests import Request, to_write
from moeprune.evaluate.tasks.prompts import context_texts
from moeprune.evaluate.written import Answer

WRITES = True


def requests(
    task: Task, question: Question, *, encoder: Encoder, tokenizer: Any, seeds: Sequence[int]
) -> tuple[Request, ...]:
    """The question, once a seed where tokens are drawn."""
    (text,) = context_texts(task, question, tokenizer=tokenizer)
    budget = task.protocol.max_new_tokens
    drawn = seeds if task.protocol.temperature > 0 else (0,)
    return tuple(
        to_write(question, text, encoder=encoder, max_new_tokens=budget, seed=seed)
        for seed in drawn
    )


def sample(task: Task, request: Request, answer: Answer) -> Sample:
    """What was found in the text; ``details.text`` holds it."""
    question = request.question
    found = extract(answer.text, task.protocol.extract)
    correct = found is not None and same(found, question.answers, task.protocol)
    return Sample(
        task=task.name,
        domain=question.domain,
        id=question.id,
        seed=request.seed,
        input=request.sha256,
        metrics={"exact_match": float(correct)},
        correct=correct,
        prediction=found,
        answer=question.answers[0] if question.answers else None,
        truncated=answer.truncated,
        tokens=int(answer.ids.size),
        details={"text": answer.text, "cut": request.cut},
    )

"""Multiple choice by the likelihood of each choice as a continuation of the question.

``acc``: the choice of the largest summed log-likelihood. So that a long choice has no worse a
chance, ``acc_norm`` takes the largest per character of the choice's text, ``acc_bytes`` per byte of
its UTF-8, as lm-evaluation-harness does; of plain English both are the same. Where the choices
stand in the text (WinoGrande), the same continuation is scored after each, and ``acc`` is all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.core.sample import Sample
from moeprune.core.tasks import Question, Task
from moeprune.evaluate.encoding import Encoder
from moeprune.evaluate.requests import Request, to_score
from moeprune.evaluate.scoring import Scores, within_rounding
from moeprune.evaluate.tasks.prompts import context_texts, continuation_texts

WRITES = False


def requests(
    task: Task, question: Question, *, encoder: Encoder, tokenizer: Any, seeds: Sequence[int]
) -> tuple[Request, ...]:
    """The question, a piece a choice; nothing is drawn."""
    contexts = context_texts(task, question, tokenizer=tokenizer)
    endings = continuation_texts(task, question)
    # One context for all choices, or one continuation for all contexts.
    number = max(len(contexts), len(endings))
    pairs = zip(
        contexts * (number // len(contexts)), endings * (number // len(endings)), strict=True
    )
    return (to_score(question, pairs, encoder=encoder),)


def close(request: Request, scores: Scores) -> bool:
    """Whether rounding could make another choice the best, by any metric."""
    return any(
        within_rounding(scores.loglik / size_C, scores.rounding / size_C)
        for size_C in _sizes(request.question).values()
    )


def sample(task: Task, request: Request, scores: Scores) -> Sample:
    """The choice; ``details.loglik`` holds the log-likelihood of each."""
    question = request.question
    assert question.right is not None
    # Of equal ones the first, as numpy says.
    said = {
        metric: int(np.argmax(scores.loglik / size_C))
        for metric, size_C in _sizes(question).items()
    }
    return Sample(
        task=task.name,
        domain=question.domain,
        id=question.id,
        input=request.sha256,
        metrics={metric: float(choice == question.right) for metric, choice in said.items()},
        correct=said["acc"] == question.right,
        prediction=question.choices[said["acc"]],
        answer=question.choices[question.right],
        details={
            "loglik": scores.loglik.tolist(),
            "close": close(request, scores),
            "cut": request.cut,
        },
    )


def _sizes(question: Question) -> dict[str, NDArray[np.float64]]:
    """Metric -> what the log-likelihood of each choice is divided by."""
    sizes = {"acc": [1] * len(question.choices)}
    if not question.contexts:
        # An empty choice would be worth any number of nats.
        sizes["acc_norm"] = [max(1, len(choice)) for choice in question.choices]
        sizes["acc_bytes"] = [max(1, len(choice.encode())) for choice in question.choices]
    return {metric: np.array(size_C, np.float64) for metric, size_C in sizes.items()}

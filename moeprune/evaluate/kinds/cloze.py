"""Multiple choice by the likelihood of each choice as a continuation of the question.

``acc``: the choice of the largest summed log-likelihood; ``acc_norm``: of the largest one per byte
of the choice's text, so that a long choice has no worse a chance. Where the choices stand in the
text (WinoGrande), the same continuation is scored after each, and there is no ``acc_norm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.core.run import Sample
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
    """Whether rounding could make another choice the best, by either metric."""
    if within_rounding(scores.loglik, scores.rounding):
        return True
    size_C = _bytes(request.question)
    return bool(size_C.size) and within_rounding(scores.loglik / size_C, scores.rounding / size_C)


def sample(task: Task, request: Request, scores: Scores) -> Sample:
    """The choice; ``details.loglik`` holds the log-likelihood of each."""
    question = request.question
    assert question.right is not None
    said = int(np.argmax(scores.loglik))
    metrics = {"acc": float(said == question.right)}
    size_C = _bytes(question)
    if size_C.size:
        metrics["acc_norm"] = float(int(np.argmax(scores.loglik / size_C)) == question.right)
    return Sample(
        task=task.name,
        domain=question.domain,
        id=question.id,
        input=request.sha256,
        metrics=metrics,
        correct=said == question.right,
        prediction=question.choices[said],
        answer=question.choices[question.right],
        details={
            "loglik": scores.loglik.tolist(),
            "close": close(request, scores),
            "cut": request.cut,
        },
    )


def _bytes(question: Question) -> NDArray[np.float64]:
    """UTF-8 bytes of each choice; none where the choices are not what is scored."""
    if question.contexts:
        return np.empty(0)
    # An empty choice would be worth any number of nats per byte.
    return np.array([max(1, len(choice.encode())) for choice in question.choices], np.float64)

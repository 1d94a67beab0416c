"""Multiple choice by the letters of the options: the most probable letter is the answer.

The protocol of MMLU: options stand in the question, k solved questions before it, and the model's
next token is read. Letters that are one token each cost one forward pass a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moeprune.core.sample import Sample
from moeprune.core.tasks import Question, Task
from moeprune.evaluate.encoding import Encoder
from moeprune.evaluate.requests import Request, to_score
from moeprune.evaluate.scoring import Scores, within_rounding
from moeprune.evaluate.tasks.letters import letters_of
from moeprune.evaluate.tasks.prompts import context_texts, continuation_texts

WRITES = False


def requests(
    task: Task, question: Question, *, encoder: Encoder, tokenizer: Any, seeds: Sequence[int]
) -> tuple[Request, ...]:
    """The question, a piece a letter; nothing is drawn."""
    (context,) = context_texts(task, question, tokenizer=tokenizer)
    pairs = ((context, letter) for letter in continuation_texts(task, question))
    return (to_score(question, pairs, encoder=encoder),)


def close(request: Request, scores: Scores) -> bool:
    """Whether rounding could make another letter the most probable one."""
    return within_rounding(scores.loglik, scores.rounding)


def sample(task: Task, request: Request, scores: Scores) -> Sample:
    """The letter; ``details.logprobs`` holds the log-probability of each."""
    question = request.question
    letters = letters_of(question)
    # Of equal ones the first, as numpy says.
    said = int(np.argmax(scores.loglik))
    assert question.right is not None
    correct = said == question.right
    return Sample(
        task=task.name,
        domain=question.domain,
        id=question.id,
        input=request.sha256,
        metrics={"acc": float(correct)},
        correct=correct,
        prediction=letters[said],
        answer=letters[question.right],
        details={
            "logprobs": scores.loglik.tolist(),
            "close": close(request, scores),
            "cut": request.cut,
        },
    )

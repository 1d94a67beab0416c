"""Negative log-likelihood of texts in windows: each predicts ``length`` tokens once.

As the harness's ``loglikelihood_rolling`` with the window as the model's length: the first window
of a text begins with the prefix token, each later one with the last token of the one before, and a
last window that is shorter is given as many tokens before it as fill it up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moeprune.core.sample import Sample
from moeprune.core.tasks import Question, Task
from moeprune.evaluate.encoding import DEFAULT_LENGTH, Encoder
from moeprune.evaluate.requests import Piece, Request
from moeprune.evaluate.scoring import Scores

WRITES = False


def requests(
    task: Task, question: Question, *, encoder: Encoder, tokenizer: Any, seeds: Sequence[int]
) -> tuple[Request, ...]:
    """A request a window of the text, numbered in its id; none of a text without tokens.

    The bytes and words of the text are noted once, on its first window, so that sums are right.
    """
    stated = task.protocol.length
    length = min(encoder.max_length, DEFAULT_LENGTH if stated is None else stated)
    ids = encoder.text(question.text)
    whole = np.concatenate([np.array([encoder.prefix], np.int32), ids])
    found = []
    for number, start in enumerate(range(0, ids.size, length)):
        end = min(start + length, ids.size)
        # ``whole`` is one token ahead: whole[start] stands before ids[start].
        first = start if start == 0 else max(0, end - length)
        piece = Piece(context=whole[first : start + 1], continuation=ids[start:end])
        found.append(
            Request(
                question=replace(question, id=f"{question.id}/{number}", text=""),
                pieces=(piece,),
                notes={
                    "document": question.id,
                    "bytes": 0 if number else len(question.text.encode()),
                    "words": 0 if number else len(re.split(r"\s+", question.text)),
                },
            )
        )
    return tuple(found)


def close(request: Request, scores: Scores) -> bool:
    """Nothing is decided."""
    return False


def sample(task: Task, request: Request, scores: Scores) -> Sample:
    """``details.nll`` in nats, of ``details.tokens`` tokens."""
    (piece,) = request.pieces
    return Sample(
        task=task.name,
        domain=request.question.domain,
        id=request.question.id,
        input=request.sha256,
        details={
            "nll": -float(scores.loglik[0]),
            "tokens": int(piece.continuation.size),
            **request.notes,
        },
    )

"""Log-likelihoods of continuations: one forward pass for many questions.

A batch moves logits in their last bits, so a question that this could decide otherwise is scored
once more, alone and unpadded: an answer depends on its question and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.errors import CheckpointError
from moeprune.evaluate.batching import Room
from moeprune.evaluate.forward import Forward
from moeprune.evaluate.lines import Row, shared_rows
from moeprune.evaluate.requests import Request

_ALONE = Room(rows=1, tokens=1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What a model gives to the pieces of a request.

    Attributes:
        loglik: float64, Σ over a piece's continuation of the natural logarithm of its probability.
        greedy: whether each token of the continuation is the most probable one.
        rounding: float64, how far a batch may have moved each of ``loglik``.
        alone: they were computed with nothing else in the pass.
    """

    loglik: NDArray[np.float64]
    greedy: NDArray[np.bool_]
    rounding: NDArray[np.float64]
    alone: bool


def within_rounding(values: NDArray[np.float64], rounding: NDArray[np.float64]) -> bool:
    """Whether rounding could make another of ``values`` the largest; equal ones count, too."""
    best = int(np.argmax(values))
    gap = values[best] - values
    gap[best] = np.inf
    return bool((gap <= rounding + rounding[best]).any())


def score(
    forward: Forward,
    requests: Sequence[Request],
    *,
    room: Room,
    close: Callable[[Request, Scores], bool],
) -> list[Scores]:
    """Score the requests of one batch.

    Args:
        forward: of the model.
        requests: whole questions.
        room: of one forward pass.
        close: whether rounding could decide a request otherwise; then it is scored alone.

    Raises:
        CheckpointError: a probability is no number.
        UsageError: a pass does not fit the GPU's memory.
    """
    found = _scored(forward, requests, room)
    for number, (request, scores) in enumerate(zip(requests, found, strict=True)):
        if not scores.alone and close(request, scores):
            found[number] = _scored(forward, [request], _ALONE)[0]
    return found


def _scored(forward: Forward, requests: Sequence[Request], room: Room) -> list[Scores]:
    pieces = [piece for request in requests for piece in request.pieces]
    loglik, rounding = np.zeros(len(pieces)), np.zeros(len(pieces))
    greedy, alone = np.ones(len(pieces), np.bool_), np.zeros(len(pieces), np.bool_)
    for rows in _passes(forward, shared_rows(pieces), room):
        for found in forward.run(rows):
            loglik[found.piece] = found.logprob.sum()
            # Errors of different tokens have no common direction.
            rounding[found.piece] = np.sqrt((found.rounding**2).sum())
            greedy[found.piece] = found.greedy.all()
            alone[found.piece] = len(rows) == 1
    done, first = [], 0
    for request in requests:
        mine = slice(first, first + len(request.pieces))
        first += len(request.pieces)
        _check_finite(request, loglik[mine])
        done.append(
            Scores(
                loglik=loglik[mine],
                greedy=greedy[mine],
                rounding=rounding[mine],
                alone=bool(alone[mine].all()),
            )
        )
    return done


def _passes(forward: Forward, rows: Sequence[Row], room: Room) -> list[list[Row]]:
    """Rows of each forward pass, longest first."""
    done: list[list[Row]] = []
    members: list[Row] = []
    for row in sorted(rows, key=lambda row: -row.ids.size):
        width = members[0].ids.size if members else row.ids.size
        fits = room.holds(len(members) + 1, width) and forward.holds([*members, row])
        if members and not fits:
            done.append(members)
            members = []
        members.append(row)
    if members:
        done.append(members)
    return done


def _check_finite(request: Request, loglik: NDArray[np.float64]) -> None:
    bad: Any = loglik[~np.isfinite(loglik)]
    if bad.size:
        raise CheckpointError(
            f"question {request.question.id!r}: the model gives a continuation the log-probability "
            f"{bad[0]}, which is no number to compare. Try --dtype float32, or leave it out."
        )

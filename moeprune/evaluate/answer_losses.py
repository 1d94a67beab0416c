"""The loss with which a model reads the answers of requests, each token given what is before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from moeprune.evaluate.batching import Room, batches
from moeprune.evaluate.forward import Forward
from moeprune.evaluate.requests import Request
from moeprune.evaluate.scoring import score

Batches = list[list[int]]


def loss_batches(model: Any, requests: Sequence[Request], room: Room) -> Batches:
    """Numbers of the requests of each batch."""
    return list(batches(requests, room, equal_lengths=not Forward(model).pads))


def answer_losses(
    model: Any,
    requests: Sequence[Request],
    *,
    room: Room,
    numbered: Batches,
    holds: Callable[[int], bool],
) -> Iterator[tuple[list[int], list[float]]]:
    """The batches that are run here: numbers of their requests, and nats of all pieces of each.

    Args:
        model: a causal language model.
        requests: with pieces.
        room: of a forward pass.
        numbered: see :func:`loss_batches`.
        holds: whether a batch, by its number, is run by this process.

    Raises:
        CheckpointError: a probability is no number, or the model lacks tokens of the tokenizer.
        UsageError: a pass does not fit the GPU's memory.
    """
    forward = Forward(model)
    forward.check_vocabulary(requests)
    for number, members in enumerate(numbered):
        if holds(number):
            due = [requests[member] for member in members]
            found = score(forward, due, room=room, close=lambda *_: False)
            yield members, [-float(np.sum(scores.loglik)) for scores in found]


def num_tokens(request: Request) -> int:
    """Tokens of all its pieces."""
    return sum(int(piece.continuation.size) for piece in request.pieces)

"""The loss of the next tokens and its gradient, a few rows of logits at a time.

The logits of a whole batch over a whole vocabulary can be larger than the model. So the model's own
forward pass is asked for those of a few positions after the other, its body answering with the
hidden states that it gave before: whatever the family does with logits (scales, soft caps) is in.

B documents, S positions, N target tokens, C of them in a chunk, H hidden size, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.observe.batches import Batch
from moeprune.observe.load import decoder_of
from moeprune.observe.loss.cuts import put
from moeprune.observe.sums import FoldedSums

HEAD_ROWS = 128
"""Rows of logits that are in memory at once, with their gradient and two copies in float32."""

_ANSWER: ContextVar[Tensor | None] = ContextVar("answer", default=None)


class _Answer:
    """What a body gives, hidden states and nothing else."""

    def __init__(self, hidden_1CH: Tensor) -> None:
        self.last_hidden_state = hidden_1CH

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, place: int) -> Tensor:
        return (self.last_hidden_state,)[place]


@contextlib.contextmanager
def answering(speaker: Any) -> Iterator[None]:
    """Inside the block, the model's body answers for :func:`logits_of` where it is asked to."""
    undo = put(body_of(speaker), _answered)
    try:
        yield
    finally:
        undo()


def _answered(forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
    hidden_1CH = _ANSWER.get()
    return forward(*args, **named) if hidden_1CH is None else _Answer(hidden_1CH)


def body_of(speaker: Any) -> nn.Module:
    """The largest part of a model that holds its decoder and not its head."""
    head, decoder = speaker.get_output_embeddings(), decoder_of(speaker)
    for module in speaker.modules():  # from the outside to the inside
        inside = set(module.modules())
        if decoder in inside and head not in inside:
            return module
    raise AssertionError  # decoder_of holds no head


def speaker_of(model: Any) -> Any:
    """The model, or the part of it that reads text and has the head, where only the part says so.

    Raises:
        UnsupportedModelError: nothing has.
    """
    for module in model.modules():  # from the outside to the inside
        if getattr(module, "get_output_embeddings", _nothing)() is not None:
            return module
    raise UnsupportedModelError(
        f"{type(model).__name__} has no head that gives logits, so there is no loss to take; "
        "calibrate without --loss-aware."
    )


def _nothing() -> None:
    return None


def logits_of(speaker: Any, hidden_1CH: Tensor) -> Tensor:
    """Logits (1, C, V) of hidden states; inside :func:`answering`."""
    token = _ANSWER.set(hidden_1CH)
    try:
        ids = torch.zeros(hidden_1CH.shape[:2], dtype=torch.int64, device=hidden_1CH.device)
        logits: Tensor = speaker(input_ids=ids, use_cache=False).logits
        return logits
    finally:
        _ANSWER.reset(token)


def loss_gradient(speaker: Any, hidden_BSH: Tensor, batch: Batch, sums: FoldedSums) -> Tensor:
    """Gradient (B, S, H) of the summed loss of a batch's target tokens, which ``sums`` is told.

    Args:
        speaker: a causal language model, inside :func:`answering`.
        hidden_BSH: what its body gave.
        batch: it read; at least one token is a target.
        sums: told of every target's loss; the gradient is of the loss at their temperature.

    Raises:
        CheckpointError: a target is no token of the head.
    """
    line_N, place_N = torch.from_numpy(batch.target_BS).nonzero(as_tuple=True)
    target_N = torch.from_numpy(batch.ids_BS)[line_N, place_N]
    hidden_BSH = hidden_BSH.detach()
    gradient_BSH = torch.zeros_like(hidden_BSH)
    for start in range(0, len(target_N), HEAD_ROWS):
        chunk = slice(start, start + HEAD_ROWS)
        at = (line_N[chunk].to(hidden_BSH.device), place_N[chunk].to(hidden_BSH.device) - 1)
        hidden_1CH = hidden_BSH[at][None].requires_grad_()
        logits_CV = logits_of(speaker, hidden_1CH)[0]
        if int(target_N.max()) >= logits_CV.shape[1]:
            raise CheckpointError(
                f"the text has token {int(target_N.max())}, the model's head gives logits of "
                f"{logits_CV.shape[1]}, so that token has no loss. The tokenizer files belong to "
                "another model; or calibrate without --loss-aware."
            )
        wide_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
        target_C = target_N[chunk].to(wide_CV.device)
        loss_C = torch.nn.functional.cross_entropy(wide_CV, target_C, reduction="none")
        sums.add_loss(loss_C.detach(), line_N[chunk])
        if sums.temperature != 1:
            softer_CV = wide_CV / sums.temperature
            loss_C = torch.nn.functional.cross_entropy(softer_CV, target_C, reduction="none")
        (found_1CH,) = torch.autograd.grad(loss_C.sum(), hidden_1CH)
        gradient_BSH[at] = found_1CH[0]
    return gradient_BSH

"""Written answers for an evaluation: one batch of prompts at a time, drawn by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.observe.decoding import Completion, Decoding, end_tokens
from moeprune.observe.domains import Ids
from moeprune.observe.generate import generate

_EVERYTHING = 1 << 62  # the batch was made before

Write = Callable[..., tuple[Completion, ...]]


def writer(model: Any, tokenizer: Any) -> Write:
    """What lets a model write for :func:`moeprune.evaluate.asking.ask`.

    Args:
        model: a causal language model.
        tokenizer: of the model.

    Raises:
        CheckpointError: the checkpoint's end token is none.
        UnsupportedModelError: transformers cannot let it write.
    """
    can = getattr(model, "can_generate", None)
    if can is None or not can():
        raise UnsupportedModelError(
            f"{type(model).__name__} has no generate of transformers, so no answer can be written. "
            "Leave out the tasks of kind generate and degeneration."
        )
    ends = end_tokens(model, tokenizer)

    def write(
        prompts: Sequence[Ids],
        *,
        names: Sequence[str],
        max_new_tokens: int,
        temperature: float,
        stop: Sequence[str],
    ) -> tuple[Completion, ...]:
        """A completion a prompt; all run side by side where the model can be padded."""
        how = Decoding(max_new_tokens=max_new_tokens, temperature=temperature, stop=tuple(stop))
        try:
            return generate(
                model,
                prompts,
                how=how,
                ends=ends,
                batch_tokens=_EVERYTHING,
                tokenizer=tokenizer,
                names=names,
            )
        except UsageError as problem:
            if not isinstance(problem.__cause__, torch.OutOfMemoryError):
                raise
            longest = max(ids.size for ids in prompts)
            raise UsageError(
                f"{len(prompts)} questions of up to {longest} tokens, and answers of "
                f"{max_new_tokens}, do not fit the GPU's memory; give a smaller --batch-size."
            ) from problem

    return write

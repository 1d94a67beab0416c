"""How much one forward pass may hold, where the user leaves it open (``--batch-size auto``).

On a CPU a few thousand tokens are as fast as any number. On a GPU more are faster, until its memory
is full; how many fit is tried with the longest request of the task, so that no later batch fails.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from moeprune.evaluate.batching import DEFAULT_TOKENS, LOGITS_BYTES, Room
from moeprune.evaluate.forward import input_device
from moeprune.evaluate.requests import Request

LARGEST = 1 << 17
"""Tokens from which on a GPU is no faster."""

# Other tokens are routed otherwise than the trial's, and more of them may choose one expert.
_OF_MEMORY = 0.85


def auto(model: Any, requests: Sequence[Request], *, max_new_tokens: int = 0) -> Room:
    """What a forward pass of a loaded model may hold.

    Args:
        model: a causal language model.
        requests: of one task.
        max_new_tokens: budget of an answer, where answers are written.
    """
    device = input_device(model)
    if device.type != "cuda" or getattr(model, "hf_device_map", None) or not requests:
        return Room()
    longest = max(request.size for request in requests) + max_new_tokens
    total = longest * sum(max(1, len(request.pieces)) for request in requests)

    def fits(tokens: int) -> bool:
        return _fits(model, device, rows=max(1, tokens // longest), width=longest)

    return Room(tokens=largest(fits, total=total))


def largest(fits: Callable[[int], bool], *, total: int) -> int:
    """The largest of 8192, 16384, … that fits, at most ``LARGEST`` and about ``total``.

    Where 8192 do not fit, the largest of 4096, 2048, …; at least 1, which is one sequence.

    Args:
        fits: whether a pass of so many tokens does; not asked beyond the first that does not.
        total: of all there is to read.
    """
    size = DEFAULT_TOKENS
    if not fits(size):
        while size > 1 and not fits(size):
            size //= 2
        return size
    while size < min(LARGEST, total) and fits(2 * size):
        size *= 2
    return size


def _fits(model: Any, device: torch.device, *, rows: int, width: int) -> bool:
    """Whether a pass of ``rows`` sequences fits; with keys and values kept, as for writing."""
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    ids = np.random.default_rng(0).integers(0, vocabulary, (rows, width))
    try:
        with torch.inference_mode():
            few = inspect.signature(model.forward).parameters.keys() & {"logits_to_keep"}
            told = dict.fromkeys(few, 1)
            model(input_ids=torch.from_numpy(ids).to(device), use_cache=True, **told)
    except torch.OutOfMemoryError:
        return False
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    # The trial gives logits of one position; a pass of questions has more, and normalises them.
    return torch.cuda.max_memory_reserved(device) + 2 * LOGITS_BYTES <= _OF_MEMORY * free

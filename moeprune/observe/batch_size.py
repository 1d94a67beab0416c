"""How many tokens to read in one forward pass, where the user leaves it open.

On a CPU a few thousand are as fast as any number: each expert then has the rows that a product
needs, and what it gives is still in the cache when it is added up. On a GPU more are faster, until
its memory is full; how many fit is tried.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import torch

from moeprune.core.layout import MoeLayout
from moeprune.errors import UsageError
from moeprune.observe.domains import Corpus, Ids
from moeprune.observe.prefill import passes
from moeprune.observe.sums import FoldedSums

DEFAULT = 8192
"""Tokens of a batch where nothing is tried."""

LARGEST = 32768
"""Tokens from which on a GPU is no faster."""

# Text routes otherwise than the trial's, and more tokens may choose one expert.
_OF_MEMORY = 0.85


def batch_size(
    model: Any,
    corpora: Sequence[Corpus],
    *,
    layout: MoeLayout,
    sharers: int,
    loss: bool = False,
) -> int:
    """Tokens of a batch for a loaded model: on a GPU the most that fit, else ``DEFAULT``.

    Args:
        model: a causal language model.
        corpora: what is to be read.
        layout: of the model's checkpoint.
        sharers: processes that share the batches.
        loss: whether a pass has a backward one.
    """
    device = model.device
    longest = max((ids for corpus in corpora for ids in corpus.documents), key=len, default=None)
    if device.type != "cuda" or getattr(model, "hf_device_map", None) or longest is None:
        return DEFAULT

    def fits(size: int) -> bool:
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        if not _is_read(model, layout, longest, rows=max(1, size // longest.size), loss=loss):
            return False
        return torch.cuda.max_memory_reserved(device) <= _OF_MEMORY * free

    return largest(fits, total=sum(corpus.num_tokens for corpus in corpora) // sharers)


def largest(fits: Callable[[int], bool], *, total: int) -> int:
    """The largest of 1024, 2048, … that fits, at most ``LARGEST`` and an eighth of ``total``.

    Args:
        fits: whether a batch of so many tokens does; not asked beyond the first that does not.
        total: tokens to read.
    """
    size = 1024
    while size < min(LARGEST, total // 8) and fits(2 * size):
        size *= 2
    return size


def _is_read(model: Any, layout: MoeLayout, longest: Ids, *, rows: int, loss: bool) -> bool:
    """Whether ``rows`` times the longest document fits; its sums are thrown away."""
    corpus = Corpus(
        name="trial",
        source="",
        sha256="",
        total=rows,
        numbers=tuple(range(rows)),
        documents=(longest,) * rows,
    )
    size = rows * longest.size
    sums = FoldedSums.of(layout, loss=loss)
    run = passes(model, corpus, sums, layout=layout, batch_tokens=size)
    try:
        with closing(run) as steps:
            for _ in steps:
                pass
    except UsageError as problem:
        if not isinstance(problem.__cause__, torch.OutOfMemoryError):
            raise
        return False
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True

"""Observe experts modules that are called with hidden states, choice and weights, by calling them.

For families that follow the calling convention of transformers' experts functions without going
through its registry. Each expert is the module itself, run on that expert's tokens with weight 1;
so whatever the module does (clamped activations, experts as blocks of rows) is what counts.

T tokens, K experts chosen, H hidden size, N tokens of one expert.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from moeprune.observe.dispatch import Watch, logits_first
from moeprune.observe.layers import MoeLayer
from moeprune.observe.sums import FoldedSums

RunAll = Callable[[Tensor, Tensor, Tensor], Tensor]
RunOf = Callable[[Any, RunAll, int, Tensor], Tensor]


@contextlib.contextmanager
def observing(model: Any, *, layers: Sequence[MoeLayer], sums: FoldedSums) -> Iterator[None]:
    """Report every MoE layer of ``model`` to ``sums`` inside the block."""
    with called(layers=layers, sums=sums, run=_by_the_module):
        yield


@contextlib.contextmanager
def called(*, layers: Sequence[MoeLayer], sums: FoldedSums, run: RunOf) -> Iterator[None]:
    """As :func:`observing`, with a way of running one expert.

    Args:
        layers: see ``observing``.
        sums: see ``observing``.
        run: from the experts module, its own forward, an expert and (N, H) rows to (N, H) outputs.
    """
    watch = Watch(layers, sums, read=logits_first)
    with contextlib.ExitStack() as undo:
        for layer in layers:
            undo.enter_context(_replaced(layer, watch, run))
        undo.enter_context(watch.hooked())
        yield


def _by_the_module(_module: Any, forward: RunAll, expert: int, rows_NH: Tensor) -> Tensor:
    ids_N1 = torch.full((len(rows_NH), 1), expert, device=rows_NH.device)
    return forward(rows_NH, ids_N1, rows_NH.new_ones(len(rows_NH), 1)).reshape(rows_NH.shape)


@contextlib.contextmanager
def _replaced(layer: MoeLayer, watch: Watch, run: RunOf) -> Iterator[None]:
    own = layer.experts.__dict__.get("forward")
    one = partial(run, layer.experts, layer.experts.forward)

    def forward(hidden: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        flat_TH = hidden.reshape(-1, hidden.shape[-1])
        return watch.run(layer, one, flat_TH, ids_TK, weights_TK).reshape(hidden.shape)

    # On the instance, never the class: accelerate shadows class forwards on dispatched models.
    layer.experts.__dict__["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del layer.experts.__dict__["forward"]
        else:
            layer.experts.__dict__["forward"] = own

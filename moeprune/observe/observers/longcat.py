"""Observe LongCat, whose tokens may choose zero experts in place of routed ones.

A zero expert gives back what it receives. It has no weights and always stays; nothing is counted of
it, but its share of the router's probability is not the routed experts'.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from moeprune.observe.layers import MoeLayer
from moeprune.observe.observers.module import RunAll, called
from moeprune.observe.products import linear
from moeprune.observe.sums import FoldedSums


@contextlib.contextmanager
def observing(model: Any, *, layers: Sequence[MoeLayer], sums: FoldedSums) -> Iterator[None]:
    """Report every MoE layer of ``model`` to ``sums`` inside the block."""
    with called(layers=layers, sums=sums, run=_one):
        yield


# By hand: the module itself fails where a token chooses a single expert.
def _one(module: Any, _forward: RunAll, expert: int, rows_NH: Tensor) -> Tensor:
    if expert >= module.num_routed_experts:
        return rows_NH
    gate_NI, up_NI = linear(rows_NH, module.gate_up_proj[expert]).chunk(2, dim=-1)
    return linear(module.act_fn(gate_NI) * up_NI, module.down_proj[expert])

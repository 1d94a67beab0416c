"""Observe ZAYA, whose router may skip the experts.

Its router has one class more than there are experts, the last one. Where a token chooses that
class, the experts module is given expert 0 with weight 0 in its place, and adds nothing: such a
token is counted as one that chose an idle expert.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from moeprune.observe.dispatch import Routed
from moeprune.observe.layers import MoeLayer
from moeprune.observe.observers.function import dispatched
from moeprune.observe.sums import FoldedSums


@contextlib.contextmanager
def observing(model: Any, *, layers: Sequence[MoeLayer], sums: FoldedSums) -> Iterator[None]:
    """Report every MoE layer of ``model`` to ``sums`` inside the block."""
    with dispatched(model, layers=layers, sums=sums, read=_with_skips):
        yield


def _with_skips(layer: MoeLayer, output: Any) -> Routed:
    logits_TC, weights_TK, ids_TK, _state = output
    return Routed(logits_TC, ids_TK.masked_fill(weights_TK == 0, layer.num_experts))

"""Observe routers that return softmax probabilities where others return logits (Gemma 4).

The softmax of the logarithm of probabilities gives them back, so these logarithms are logits; an
expert whose probability was rounded to 0 stays at 0. A factor of each expert, ``per_expert_scale``,
is in the weights that the experts receive, and so in the gate weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from moeprune.errors import UnsupportedModelError
from moeprune.observe.dispatch import Routed, looks_normalised
from moeprune.observe.layers import MoeLayer
from moeprune.observe.observers.function import dispatched
from moeprune.observe.scores import widened
from moeprune.observe.sums import FoldedSums


@contextlib.contextmanager
def observing(model: Any, *, layers: Sequence[MoeLayer], sums: FoldedSums) -> Iterator[None]:
    """Report every MoE layer of ``model`` to ``sums`` inside the block."""
    with dispatched(model, layers=layers, sums=sums, read=_log_probabilities):
        yield


def _log_probabilities(layer: MoeLayer, output: Any) -> Routed:
    first: Tensor = output[0]
    probs_TE = widened(first.reshape(-1, first.shape[-1]))
    if not looks_normalised(probs_TE):
        raise UnsupportedModelError(
            f"layer {layer.layer}: the router returns no probabilities, as those of its family do."
        )
    return Routed(probs_TE.log())

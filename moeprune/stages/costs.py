"""What a token costs in a checkpoint that is open: its quantised weights count as unpacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeprune.architectures import next_token_layers
from moeprune.core.cost import Cost, cost_of
from moeprune.core.layout import TensorInfo
from moeprune.core.policy import RoutingPolicy
from moeprune.quant import stored_format, values_of
from moeprune.stages.identify import OpenModel


def token_cost(
    opened: OpenModel,
    *,
    policy: RoutingPolicy | None = None,
    keep: Sequence[Sequence[int]] | None = None,
    stored: Mapping[str, TensorInfo] | None = None,
) -> Cost:
    """What one token activates and reads; see :func:`moeprune.core.cost.cost_of`.

    Args:
        opened: the (unpruned) model.
        policy: None: the native routing.
        keep: L sequences of the experts that stay; None: all.
        stored: see ``cost_of``: of a quantised export.
    """
    index, layout = opened.index, opened.layout
    return cost_of(
        layout,
        index.tensors,
        policy=policy,
        keep=keep,
        values=values_of(stored_format(index.config), index.tensors),
        unused=next_token_layers(index.config, index.tensors, layout).tensors,
        stored=stored,
    )

"""How a causal model reads a batch where the loss of its target tokens is taken back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from moeprune import plugins
from moeprune.core.layout import MoeLayout
from moeprune.errors import UnsupportedModelError
from moeprune.observe import observers
from moeprune.observe.batches import Batch
from moeprune.observe.inputs import Read, inputs_of
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import decoder_of
from moeprune.observe.loss.cuts import cut, frozen, sweeping
from moeprune.observe.loss.head import answering, body_of, loss_gradient, speaker_of
from moeprune.observe.placed import input_device
from moeprune.observe.streamed.units import units_of
from moeprune.observe.sums import FoldedSums


def check_loss(layout: MoeLayout) -> None:
    """Check that models of a family read a text in one causal pass.

    Raises:
        UnsupportedModelError: they do not.
    """
    if hasattr(plugins.load(observers, layout.observer), "reader"):
        raise UnsupportedModelError(
            f"family {layout.model_type} does not read a text in one causal pass, so there is no "
            "next-token loss to take back; calibrate it without --loss-aware."
        )


@contextlib.contextmanager
def loss_pass(model: Any, *, layout: MoeLayout) -> Iterator[Read]:
    """How to read a batch: forward without autograd, then back layer by layer.

    What runs forward reports as in a plain pass; what runs again under autograd reports what the
    loss says of each expert.

    Args:
        model: a causal language model; afterwards it is as it was.
        layout: of its checkpoint.

    Raises:
        UnsupportedModelError: the family reads a text otherwise, or has no head.
    """
    check_loss(layout)
    speaker = speaker_of(model)
    decoder = decoder_of(speaker)

    def read(batch: Batch, sums: FoldedSums) -> None:
        sums.begin(batch.fold_BS, batch.counted_BS, batch.number_B)
        inputs = inputs_of(decoder, batch, input_device(model))
        if not batch.target_BS.any():
            with torch.no_grad():
                decoder(**inputs, use_cache=False)
            sums.end()
            return
        with sweeping() as sweep:
            kept = sweep.kept  # noqa: F841  what a pass that waits holds is looked for in frames
            hidden_BSH = decoder(**inputs, use_cache=False).last_hidden_state
            gradient_BSH = loss_gradient(speaker, hidden_BSH, batch, sums)
            torch.autograd.backward(hidden_BSH, gradient_BSH, retain_graph=True)
            del hidden_BSH, gradient_BSH
            sweep.back()
        sums.end()

    with frozen(model), answering(speaker), cut(_parts(model, speaker, layout)):
        yield read


def _parts(
    model: nn.Module, speaker: nn.Module, layout: MoeLayout
) -> list[tuple[str, nn.Module, bool]]:
    """Layers, and what has weights before, between and behind them, but for the head.

    The graph of a norm behind the last layer is several times the layer's answer, and would be in
    memory for each of the passes that wait for the head together.
    """
    inside = set(body_of(speaker).modules())
    units, _ = units_of(model, moe_layers(model, layout))
    return [(unit.name, unit.module, unit.routed) for unit in units if unit.module in inside]

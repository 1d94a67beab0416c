"""What a model's body is given of a batch, and how a causal model reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from moeprune.observe.batches import Batch
from moeprune.observe.load import decoder_of, takes
from moeprune.observe.placed import input_device
from moeprune.observe.sums import FoldedSums

Read = Callable[[Batch, FoldedSums], None]
"""How a model reads a batch, and reports to the sums."""


def inputs_of(decoder: Any, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
    """Named arguments of a decoder's forward pass.

    Args:
        decoder: the model without its head.
        batch: to read.
        device: where the tokens must lie.
    """
    inputs = {"input_ids": torch.from_numpy(batch.ids_BS).to(device)}
    # Without padding the model's own causal mask is the same and faster; only padding on the left
    # moves tokens from the positions that the model counts itself.
    if not batch.mask_BS.all():
        inputs["attention_mask"] = torch.from_numpy(batch.mask_BS).to(device)
    if not batch.mask_BS[:, 0].all() and takes(decoder, "position_ids"):
        inputs["position_ids"] = torch.from_numpy(batch.positions_BS).to(device)
    return inputs


def one_pass(model: Any) -> Read:
    """How a causal model reads a batch: one forward pass, without the head."""
    decoder = decoder_of(model)

    def read(batch: Batch, sums: FoldedSums) -> None:
        sums.begin(batch.fold_BS, batch.counted_BS, batch.number_B)
        decoder(**inputs_of(decoder, batch, input_device(model)), use_cache=False)
        sums.end()

    return read

"""Forward passes over the documents of a domain, every MoE layer observed.

Where documents have a start of counting, the tokens before it are read and not counted.

A causal model reads a batch in one pass. An observer of models that read otherwise has a ``reader``
of its own, which takes a model as :func:`one_pass` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprune import plugins
from moeprune.core.layout import MoeLayout
from moeprune.errors import CheckpointError, UnsupportedModelError, UsageError
from moeprune.observe import observers
from moeprune.observe.batches import Batch, batches
from moeprune.observe.domains import Corpus
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import decoder_of, takes
from moeprune.observe.sums import FoldedSums

Read = Callable[[Batch, FoldedSums], None]


def check_observer(layout: MoeLayout) -> None:
    """Check that calibration knows how to see this family's experts.

    Raises:
        UnsupportedModelError: it does not.
    """
    have = plugins.names(observers)
    if layout.observer not in have:
        raise UnsupportedModelError(
            f"calibration cannot see the experts of family {layout.model_type} yet (observer "
            f"{layout.observer!r}; there are {', '.join(have)}). Take a model of another family."
        )


def prefill(
    model: Any,
    corpus: Corpus,
    *,
    layout: MoeLayout,
    batch_tokens: int,
    padding_side: str = "right",
    on_tokens: Callable[[int], None] | None = None,
) -> Mapping[str, NDArray[Any]]:
    """Run every document once and sum what routers and experts did.

    Args:
        model: a causal language model; it is left as it was.
        corpus: the documents.
        layout: of the model's checkpoint.
        batch_tokens: positions of one forward pass, padding included.
        padding_side: ``"right"`` or ``"left"``; it does not change the sums.
        on_tokens: told of the tokens of each finished batch.

    Returns:
        Field -> array with a leading fold axis, as ``core.stats.FIELDS`` states them.

    Raises:
        CheckpointError: the tokenizer gives ids that the model does not have.
        UnsupportedModelError: the model cannot be observed.
        StatsError: a layer reported nothing.
        UsageError: a batch does not fit the GPU's memory.
    """
    check_observer(layout)
    layers = moe_layers(model, layout)
    _check_vocabulary(model, corpus)
    sums = FoldedSums(
        layer_ids=layout.layer_ids,
        num_experts=layout.num_experts,
        gating=layout.gating,
        gate_scale=layout.gate_scale,
        num_idle=layout.idle_experts,
    )
    observer = plugins.load(observers, layout.observer)
    read: Read = getattr(observer, "reader", one_pass)(model)
    with torch.inference_mode(), observer.observing(model, layers=layers, sums=sums):
        for batch in batches(corpus, max_tokens=batch_tokens, padding_side=padding_side):
            try:
                read(batch, sums)
            except torch.OutOfMemoryError as problem:
                raise UsageError(
                    f"a batch of {batch.ids_BS.size} tokens does not fit the GPU's memory; give a "
                    "smaller --batch-tokens."
                ) from problem
            if on_tokens is not None:
                on_tokens(batch.num_tokens)
    return sums.arrays()


def one_pass(model: Any) -> Read:
    """How a causal model reads a batch: one forward pass, without the head."""
    decoder = decoder_of(model)

    def read(batch: Batch, sums: FoldedSums) -> None:
        sums.begin(batch.fold_BS, batch.counted_BS)
        decoder(**_inputs(decoder, batch, model.device), use_cache=False)
        sums.end()

    return read


def _inputs(decoder: Any, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
    inputs = {"input_ids": torch.from_numpy(batch.ids_BS).to(device)}
    # Without padding the model's own causal mask is the same and faster; only padding on the left
    # moves tokens from the positions that the model counts itself.
    if not batch.mask_BS.all():
        inputs["attention_mask"] = torch.from_numpy(batch.mask_BS).to(device)
    if not batch.mask_BS[:, 0].all() and takes(decoder, "position_ids"):
        inputs["position_ids"] = torch.from_numpy(batch.positions_BS).to(device)
    return inputs


def _check_vocabulary(model: Any, corpus: Corpus) -> None:
    size = int(model.get_input_embeddings().num_embeddings)
    largest = max((int(np.max(ids)) for ids in corpus.documents), default=0)
    if largest >= size:
        raise CheckpointError(
            f"domain {corpus.name!r}: the tokenizer gives token {largest}, the model has {size}. "
            "The tokenizer files belong to another model."
        )

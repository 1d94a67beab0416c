"""Observe through transformers' registry of experts functions, which most families dispatch to.

The function receives what the experts module receives: hidden states, the router's own choice and
its own weights. So biased, grouped, scaled and renormalised routers are right by construction.

T tokens, K experts chosen, E experts, H hidden size, N tokens of one expert.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from moeprune.errors import UnsupportedModelError
from moeprune.observe.dispatch import Read, Watch, logits_first, weighted_sum
from moeprune.observe.layers import MoeLayer
from moeprune.observe.products import linear
from moeprune.observe.sums import FoldedSums

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@contextlib.contextmanager
def observing(model: Any, *, layers: Sequence[MoeLayer], sums: FoldedSums) -> Iterator[None]:
    """Report every MoE layer of ``model`` to ``sums`` inside the block.

    Raises:
        UnsupportedModelError: a layer's experts are not of the kind that the registry serves; also
            raised by a forward pass inside the block, naming the layer.
    """
    with dispatched(model, layers=layers, sums=sums, read=logits_first):
        yield


@contextlib.contextmanager
def dispatched(
    model: Any, *, layers: Sequence[MoeLayer], sums: FoldedSums, read: Read
) -> Iterator[None]:
    """As :func:`observing`, for routers that return what ``read`` understands."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    for layer in layers:
        check_readable(layer)
    by_module = {id(layer.experts): layer for layer in layers}
    watch = Watch(layers, sums, read=read)

    def forward(module: Any, hidden_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        layer = by_module.get(id(module))
        if layer is None:  # experts beside the layout's layers: run them, count nothing
            return experts_forward(module, hidden_TH, ids_TK, weights_TK, num_experts=None)[0]
        return watch.run(layer, partial(_expert, module), hidden_TH, ids_TK, weights_TK)

    name = f"moeprune_observe_{id(sums):x}"
    with _implementation(model, name, ALL_EXPERTS_FUNCTIONS, forward), watch.hooked():
        yield


def check_readable(layer: MoeLayer) -> None:
    """Check that the registry serves a layer's experts, and that their weights are plain numbers.

    Raises:
        UnsupportedModelError: it does not, or they are not.
    """
    experts: Any = layer.experts
    kind = f"layer {layer.layer}: its experts are a {type(experts).__name__}"
    if not hasattr(experts, "is_transposed"):
        raise UnsupportedModelError(
            f"{kind}, which transformers' registry of experts functions does not serve; this "
            "family needs an observer of its own."
        )
    weight = getattr(experts, "gate_up_proj" if experts.has_gate else "up_proj", None)
    if not isinstance(weight, Tensor) or weight.ndim != 3 or weight.dtype not in _DTYPES:
        raise UnsupportedModelError(
            f"{kind} with quantised weights; calibration reads float32, bfloat16 and float16. "
            "Calibrate the unquantised checkpoint."
        )


@contextlib.contextmanager
def _implementation(model: Any, name: str, registry: Any, forward: Any) -> Iterator[None]:
    """Run the model's experts through ``forward``; afterwards as before, every sub-config too."""
    from transformers import PreTrainedModel

    configs = {
        id(module.config): module.config
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
    }
    former = [(config, config._experts_implementation) for config in configs.values()]
    registry[name] = forward
    try:
        model.set_experts_implementation(name)
        yield
    finally:
        for config, implementation in former:
            # The setter of the model would adjust what it is given; this gives back what was there.
            config._experts_implementation_internal = implementation
        del registry[name]


def experts_forward(
    module: Any, hidden_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor, *, num_experts: int | None
) -> tuple[Tensor, Tensor]:
    """All experts of a module on their tokens; see :func:`weighted_sum`."""
    return weighted_sum(
        partial(_expert, module),
        hidden_TH,
        ids_TK,
        weights_TK,
        num_experts=module.num_experts if num_experts is None else num_experts,
        kind=type(module).__name__,
    )


def _expert(module: Any, expert: int, hidden_NH: Tensor) -> Tensor:
    """One expert's feed-forward network, by the flags that transformers gives an experts class."""
    first = "gate_up_proj" if module.has_gate else "up_proj"
    inner = _project(module, first, expert, hidden_NH)
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    output_NH = _project(module, "down_proj", expert, inner)
    if module.has_post_expert_norm:
        output_NH = module.post_expert_norm(output_NH)
    return output_NH


def _project(module: Any, name: str, expert: int, rows: Tensor) -> Tensor:
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    rows = rows.to(weight.dtype)
    return linear(rows, weight.T if module.is_transposed else weight, bias)

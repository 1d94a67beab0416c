"""Observe through transformers' registry of experts functions, which most families dispatch to.

The function receives what the experts module receives: hidden states, the router's own choice and
its own weights. So biased, grouped, scaled and renormalised routers are right by construction.

T tokens, K experts chosen, E experts, H hidden size, N tokens of one expert.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from moeprune.errors import UnsupportedModelError
from moeprune.observe.layers import MoeLayer
from moeprune.observe.sums import FoldedSums, widened

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@contextlib.contextmanager
def observing(model: Any, *, layers: Sequence[MoeLayer], sums: FoldedSums) -> Iterator[None]:
    """Report every MoE layer of ``model`` to ``sums`` inside the block.

    Raises:
        UnsupportedModelError: a layer's experts are not of the kind that the registry serves; also
            raised by a forward pass inside the block, naming the layer.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    for layer in layers:
        _check_readable(layer)
    by_module = {id(layer.experts): layer for layer in layers}
    logits: dict[int, Tensor] = {}

    def forward(module: Any, hidden_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        layer = by_module.get(id(module))
        if layer is None:  # experts beside the layout's layers: run them, count nothing
            return experts_forward(module, hidden_TH, ids_TK, weights_TK, num_experts=None)[0]
        if layer.row not in logits:
            raise UnsupportedModelError(
                f"layer {layer.layer}: its experts ran, but its router gave no logits before; "
                "this family needs an observer of its own."
            )
        live_TH = sums.live(hidden_TH, row=layer.row)
        live_ids_TK = sums.live(ids_TK, row=layer.row)
        live_weights_TK = sums.live(weights_TK, row=layer.row)
        output_TH, norms_TK = experts_forward(
            module, live_TH, live_ids_TK, live_weights_TK, num_experts=layer.num_experts
        )
        sums.add(
            layer.row,
            logits_TE=sums.live(logits.pop(layer.row), row=layer.row),
            ids_TK=live_ids_TK,
            gates_TK=live_weights_TK,
            norms_TK=norms_TK,
        )
        if sums.live_T is None:
            return output_TH
        # Padding gets no expert: what it would compute reaches no token.
        return torch.zeros_like(hidden_TH).index_copy_(
            0, sums.live_T.to(hidden_TH.device), output_TH
        )

    name = f"moeprune_observe_{id(sums):x}"
    with contextlib.ExitStack() as undo:
        undo.enter_context(_implementation(model, name, ALL_EXPERTS_FUNCTIONS, forward))
        for layer in layers:
            hook = layer.router.register_forward_hook(_keep_logits(layer, logits))
            undo.callback(hook.remove)
        yield


def _check_readable(layer: MoeLayer) -> None:
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


def _keep_logits(layer: MoeLayer, logits: dict[int, Tensor]) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) else output
        if not isinstance(first, Tensor) or not first.is_floating_point():
            raise UnsupportedModelError(
                f"layer {layer.layer}: the router returns no logits; this family needs an "
                "observer of its own."
            )
        first_TE = first.reshape(-1, first.shape[-1])
        if looks_normalised(first_TE):
            raise UnsupportedModelError(
                f"layer {layer.layer}: the router returns probabilities in place of logits; this "
                "family needs an observer of its own."
            )
        logits[layer.row] = first_TE

    return hook


def looks_normalised(values_TE: Tensor) -> bool:
    """Whether every row is already a probability distribution; logits are that by no accident."""
    head_TE = values_TE[:64].float()
    return bool(((head_TE >= 0).all() & ((head_TE.sum(dim=-1) - 1).abs() < 1e-2).all()).item())


def experts_forward(
    module: Any, hidden_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor, *, num_experts: int | None
) -> tuple[Tensor, Tensor]:
    """Run each expert once on its tokens.

    One expert after the other is on CPUs faster than a grouped product over copied rows, needs
    memory for one expert's tokens only, and adds in an order that is always the same.

    Returns:
        (T, H) the weighted sum of the experts' outputs, added in float32 or wider; (T, K) norms of
        the outputs before weighting.
    """
    experts = module.num_experts if num_experts is None else num_experts
    top_k = ids_TK.shape[1]
    sorted_S, order_S = torch.sort(ids_TK.reshape(-1), stable=True)
    counts = torch.bincount(sorted_S, minlength=experts).tolist()
    if len(counts) != experts:
        raise UnsupportedModelError(
            f"{type(module).__name__}: a token chose expert {len(counts) - 1} of {experts}; a "
            "family with experts beside the routed ones needs an observer of its own."
        )
    token_S = order_S // top_k
    weight_S = widened(weights_TK.reshape(-1)[order_S])
    wide = torch.promote_types(hidden_TH.dtype, torch.float32)
    norm_S = torch.empty(token_S.shape, dtype=wide, device=hidden_TH.device)
    total_TH = torch.zeros(hidden_TH.shape, dtype=wide, device=hidden_TH.device)
    start = 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        span = slice(start, start + count)
        token_N = token_S[span]
        output_NH = widened(_expert(module, expert, hidden_TH[token_N]))
        norm_S[span] = torch.linalg.vector_norm(output_NH, dim=-1)
        total_TH.index_add_(0, token_N, output_NH * weight_S[span, None])
        start += count
    norm_flat = torch.empty_like(norm_S)
    norm_flat[order_S] = norm_S
    return total_TH.to(hidden_TH.dtype), norm_flat.reshape(ids_TK.shape)


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

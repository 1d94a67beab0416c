"""What a model's MoE layers do with a text, watched in a plain forward pass of one text at a time.

Nothing of moeprune takes part except the names of the modules, and the random tokens of canvases.
Each expert's output comes from the family's own experts module, run on one expert alone. The factor
that the block itself applies is measured: what the block gives, less what it gives when its experts
give zero.

T tokens, E experts, K chosen, H hidden size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from family_data import FamilyData
from numpy.typing import NDArray

from moeprune.core.layout import MoeLayout
from moeprune.observe.layers import moe_layers
from moeprune.observe.observers.canvas import noisy

_BIAS = re.compile(r"(^|\.)(e_score_correction_bias|expert_bias|router_bias|balancing_biases)$")


@dataclass(kw_only=True)
class Watched:
    """One layer and one text, or one of its canvases."""

    row: int
    logits_TE: torch.Tensor
    ids_TK: torch.Tensor
    weights_TK: torch.Tensor
    outputs_TKH: torch.Tensor  # of the chosen experts, before weighting
    added_TH: torch.Tensor  # what the block's experts add to its output
    shared_TS: torch.Tensor | None  # logits of experts that always run and share in the weights


@dataclass(frozen=True)
class Reading:
    """One forward pass of the whole model, and how many tokens the watched layer gets in it."""

    inputs: dict[str, torch.Tensor]
    tokens: int


@torch.no_grad()
def watch(
    model: Any, layout: MoeLayout, ids: list[int], data: FamilyData, *, number: int = 0
) -> list[list[Watched]]:
    """Every MoE layer of ``model`` on the text ``number``, each time that it runs."""
    return [_watch_layer(model, layer, ids, data, number) for layer in moe_layers(model, layout)]


def _watch_layer(
    model: Any, layer: Any, ids: list[int], data: FamilyData, number: int
) -> list[Watched]:
    if data.pairs:
        return [_watch_pairs(model, layer, ids, bias=data.pairs)]
    found = []
    for reading in _readings(model, layer, ids, data, number):
        loud = _passes(model, layer, reading, data, silent=None)
        for place, kept in enumerate(loud):
            silent = _passes(model, layer, reading, data, silent=place)[place]
            added_TH = kept["block"] - silent["block"]
            found.append(_watched(layer, kept, reading.tokens, added_TH))
    return found


def _readings(
    model: Any, layer: Any, ids: list[int], data: FamilyData, number: int
) -> list[Reading]:
    """What the whole model is given, so that the layer runs on every token that counts."""
    text = {"input_ids": torch.tensor([ids])}
    if not data.canvas:
        return [Reading(text, len(ids))]
    if layer.experts not in list(model.get_decoder().modules()):
        return [Reading({**text, "decoder_input_ids": torch.tensor([[0]])}, len(ids))]
    length = data.config["canvas_length"]
    found = []
    for start in range(1, len(ids), length):
        canvas_1C = noisy(
            np.array([ids[start : start + length]]),
            np.array([number]),
            start=start,
            length=length,
            vocabulary=data.config["text_config"]["vocab_size"],
        )
        prompt, canvas = torch.tensor([ids[:start]]), torch.from_numpy(canvas_1C)
        inputs = {"input_ids": prompt, "decoder_input_ids": canvas}
        found.append(Reading(inputs, canvas.shape[1]))
    return found


def _watch_pairs(model: Any, layer: Any, ids: list[int], *, bias: str) -> Watched:
    """JetMoE: experts that receive (token, expert) pairs, and a bias that all share."""
    kept: dict[str, Any] = {}
    names = {id(module): name for name, module in model.named_modules()}
    name = names[id(layer.experts)]
    # The attention experts are two projections inside the module that gives their sum.
    block = model.get_submodule(name.removesuffix(".experts"))
    last = layer.experts.output_linear
    hooks = [
        layer.router.register_forward_hook(lambda _m, i, out: kept.update(x=i[0], router=out)),
        last.register_forward_pre_hook(lambda _m, inputs: kept.update(inner=inputs[0])),
        block.register_forward_hook(lambda _m, _i, out: kept.update(block=out)),
    ]
    model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    logits_TE = kept["x"] @ layer.router.layer.weight.T
    top_TK, ids_TK = logits_TE.topk(layer.router.top_k)
    outputs_TKH = torch.zeros(*ids_TK.shape, kept["x"].shape[1])
    for place, pair in enumerate(kept["router"][0].tolist()):
        token, rank = divmod(pair, ids_TK.shape[1])
        weight_HI = last.weight[ids_TK[token, rank]]
        outputs_TKH[token, rank] = weight_HI @ kept["inner"][place]
    out = kept["block"][0] if isinstance(kept["block"], tuple) else kept["block"]
    return Watched(
        row=layer.row,
        logits_TE=logits_TE.double(),
        ids_TK=ids_TK,
        weights_TK=top_TK.softmax(dim=1).double(),
        outputs_TKH=outputs_TKH.double(),
        added_TH=(out.reshape(len(ids), -1) - getattr(layer.experts, bias)).double(),
        shared_TS=None,
    )


def _passes(
    model: Any, layer: Any, reading: Reading, data: FamilyData, *, silent: int | None
) -> list[dict[str, Any]]:
    """What each pass through the layer gives; in pass ``silent`` its experts give zero."""
    names = {id(module): name for name, module in model.named_modules()}
    block = model.get_submodule(names[id(layer.experts)].rpartition(".")[0])
    passes: list[dict[str, Any]] = []
    kept: dict[str, Any] = {}

    def experts(_module: Any, given: Any, output: torch.Tensor) -> torch.Tensor | None:
        kept.update(input=given[0], choice=given[1:])
        return torch.zeros_like(output) if silent == len(passes) else None

    def done(_module: Any, _inputs: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output
        passes.append({**kept, "block": output.reshape(reading.tokens, -1)})

    hooks = [
        layer.router.register_forward_hook(lambda _m, _i, out: kept.update(router=out)),
        layer.experts.register_forward_hook(experts),
    ]
    if data.logits:
        inner = layer.router.get_submodule(data.logits)
        hooks.append(inner.register_forward_hook(lambda _m, _i, out: kept.update(logits=out)))
    if data.routed_sum:
        after = block.get_submodule(data.routed_sum)
        hooks.append(after.register_forward_pre_hook(lambda module, x: done(module, None, x)))
    else:
        hooks.append(block.register_forward_hook(done))
    model(**reading.inputs, use_cache=False)
    for hook in hooks:
        hook.remove()
    return passes


def _watched(layer: Any, kept: dict[str, Any], tokens: int, added_TH: torch.Tensor) -> Watched:
    router = kept["router"]
    if isinstance(router, torch.Tensor):  # logits alone: the block chooses
        router = (router, *reversed(kept["choice"]))
    if len(router) == 2:  # Llama 4: dense scores of all experts, which scale what goes in
        scores_TE, logits_TE = router
        weights_TK, ids_TK = scores_TE.topk(layer.router.top_k, dim=1)
        outputs_TEH = kept["input"].new_zeros(layer.num_experts, tokens, added_TH.shape[1])
        outputs_TEH = layer.experts(kept["input"]).reshape(outputs_TEH.shape).transpose(0, 1)
    else:
        logits_TE, weights_TK, ids_TK = router[:3]
        x_TH = kept["input"].reshape(tokens, -1)
        # Two columns, the second of no weight: LongCat's experts fail on one.
        one_T2 = torch.tensor([[1.0, 0.0]] * tokens)
        outputs_TEH = torch.stack(
            [
                layer.experts(x_TH, torch.full((tokens, 2), expert), one_T2).reshape(x_TH.shape)
                for expert in range(layer.num_experts + layer.num_idle)
            ],
            dim=1,
        )
    ids_TK = ids_TK.reshape(tokens, -1)
    shared_TS = None
    if layer.num_idle and len(router) == 4:  # ZAYA: a skip is given to the experts as a zero
        ids_TK = torch.where(weights_TK == 0, layer.num_experts, ids_TK)
    elif len(router) == 4:  # Inkling: experts that always run have the last rows
        shared_TS = (x_TH @ layer.router.weight[layer.num_experts :].T).double()
    return Watched(
        row=layer.row,
        logits_TE=kept.get("logits", logits_TE).reshape(tokens, -1).double(),
        ids_TK=ids_TK,
        weights_TK=weights_TK.reshape(tokens, -1).double(),
        outputs_TKH=outputs_TEH[torch.arange(tokens)[:, None], ids_TK].double(),
        added_TH=added_TH.double(),
        shared_TS=shared_TS,
    )


def looked_up(model: Any, layout: MoeLayout, ids: list[int]) -> list[NDArray[Any] | None]:
    """Per MoE layer the (T, K) experts, ids ascending, that a table of tokens states, or None."""
    tables = [getattr(layer.router, "tid2eid", None) for layer in moe_layers(model, layout)]
    return [None if table is None else np.sort(table.numpy()[ids], axis=1) for table in tables]


def expert_scale(model: Any, layout: MoeLayout) -> list[NDArray[Any] | None]:
    """Per MoE layer the (E,) factors that its router multiplies the chosen weights by, or None."""
    found: list[NDArray[Any] | None] = []
    for layer in moe_layers(model, layout):
        scale = getattr(layer.router, "per_expert_scale", None)
        scale = getattr(layer.router, "global_scale", scale)  # one for all
        one_E = np.ones(layer.num_experts)
        found.append(None if scale is None else scale.detach().double().numpy() * one_E)
    return found


def selection_bias(model: Any, layout: MoeLayout) -> list[NDArray[Any] | None]:
    """Per MoE layer the (E,) bias that its router adds to choose, or None."""
    found: list[NDArray[Any] | None] = []
    names = {id(module): name for name, module in model.named_modules()}
    for layer in moe_layers(model, layout):
        block = model.get_submodule(names[id(layer.experts)].rpartition(".")[0])
        tensors = dict([*block.named_parameters(), *block.named_buffers()])
        biases = [tensor for name, tensor in tensors.items() if _BIAS.search(name)]
        assert len(biases) <= 1, sorted(tensors)
        found.append(biases[0].detach().reshape(-1).double().numpy() if biases else None)
    return found

"""What a model's MoE layers do with a text, watched in a plain forward pass of one text at a time.

Nothing of moeprune takes part except the names of the modules. Each expert's output comes from the
family's own experts module, run on one expert alone. The factor that the block itself applies is
measured: what the block gives, less what it gives when its experts give zero.

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
from router_reference import probabilities_of

from moeprune.core.layout import MoeLayout
from moeprune.observe.layers import moe_layers

FOLDS = 4
_BIAS = re.compile(r"(^|\.)(e_score_correction_bias|expert_bias|router_bias|balancing_biases)$")


@dataclass(kw_only=True)
class Watched:
    """One layer and one text."""

    logits_TE: torch.Tensor
    ids_TK: torch.Tensor
    weights_TK: torch.Tensor
    outputs_TKH: torch.Tensor  # of the chosen experts, before weighting
    added_TH: torch.Tensor  # what the block's experts add to its output
    shared_TS: torch.Tensor | None  # logits of experts that always run and share in the weights


@torch.no_grad()
def watch(model: Any, layout: MoeLayout, ids: list[int], data: FamilyData) -> list[list[Watched]]:
    """Every MoE layer of ``model`` on one text, each time that the forward pass runs it."""
    return [_watch_layer(model, layer, ids, data) for layer in moe_layers(model, layout)]


def _watch_layer(model: Any, layer: Any, ids: list[int], data: FamilyData) -> list[Watched]:
    if data.pairs:
        return [_watch_pairs(model, layer, ids, bias=data.pairs)]
    loud = _passes(model, layer, ids, data, silent=None)
    found = []
    for number, kept in enumerate(loud):
        silent = _passes(model, layer, ids, data, silent=number)[number]
        found.append(_watched(layer, kept, len(ids), kept["block"] - silent["block"]))
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
        logits_TE=logits_TE.double(),
        ids_TK=ids_TK,
        weights_TK=top_TK.softmax(dim=1).double(),
        outputs_TKH=outputs_TKH.double(),
        added_TH=(out.reshape(len(ids), -1) - getattr(layer.experts, bias)).double(),
        shared_TS=None,
    )


def _passes(
    model: Any, layer: Any, ids: list[int], data: FamilyData, *, silent: int | None
) -> list[dict[str, Any]]:
    """What each pass through the layer gives; in pass ``silent`` its experts give zero."""
    names = {id(module): name for name, module in model.named_modules()}
    block = model.get_submodule(names[id(layer.experts)].rpartition(".")[0])
    passes: list[dict[str, Any]] = []
    kept: dict[str, Any] = {}

    def experts(_module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        kept.update(input=inputs[0], choice=inputs[1:])
        return torch.zeros_like(output) if silent == len(passes) else None

    def done(_module: Any, _inputs: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output
        passes.append({**kept, "block": output.reshape(len(ids), -1)})

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
    model(input_ids=torch.tensor([ids]), use_cache=False)
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
        logits_TE=kept.get("logits", logits_TE).reshape(tokens, -1).double(),
        ids_TK=ids_TK,
        weights_TK=weights_TK.reshape(tokens, -1).double(),
        outputs_TKH=outputs_TEH[torch.arange(tokens)[:, None], ids_TK].double(),
        added_TH=added_TH.double(),
        shared_TS=shared_TS,
    )


def block_scale(watched: Watched, *, on_input: bool) -> float:
    """The factor between the weighted sum of the experts' outputs and what the block adds."""
    weights_TK1 = 1.0 if on_input else watched.weights_TK[:, :, None]
    sum_TH = (weights_TK1 * watched.outputs_TKH).sum(dim=1)
    if not watched.weights_TK.any():  # every token skips the experts
        assert not watched.added_TH.any()
        return 1.0
    assert sum_TH.abs().max() > 1e-3
    scale = float((watched.added_TH * sum_TH).sum() / sum_TH.square().sum())
    torch.testing.assert_close(watched.added_TH, scale * sum_TH, rtol=1e-3, atol=1e-5)
    return scale


def slow_sums(
    texts: list[list[list[Watched]]], *, gating: str, num_experts: int, on_input: bool
) -> dict[str, NDArray[Any]]:
    """Every field of a domain's stats, by the definitions in words."""
    layers = len(texts[0])
    wide = (FOLDS, layers, num_experts)
    per_expert = "count prob_sum gate_sum norm_sum norm_sq_sum gate_norm_sum gate_norm_sq_sum"
    per_expert += " prob_norm_sum norm_max rank_prob_sum"
    sums = {name: np.zeros(wide) for name in per_expert.split()}
    sums |= {name: np.zeros(wide[:2]) for name in ("tokens", "entropy_sum", "entropy_sq_sum")}
    for number, text in enumerate(texts):
        passes = [(row, watched) for row, layer in enumerate(text) for watched in layer]
        for row, watched in passes:
            at = (number % FOLDS, row)
            gates_TK = (watched.weights_TK * block_scale(watched, on_input=on_input)).abs().numpy()
            norms_TK = watched.outputs_TKH.norm(dim=-1).numpy()
            probs_TE = probabilities_of(watched.logits_TE.numpy(), gating=gating)
            entropy_T = -(probs_TE * np.log2(probs_TE)).sum(axis=1)
            sums["tokens"][at] += len(probs_TE)
            sums["entropy_sum"][at] += entropy_T.sum()
            sums["entropy_sq_sum"][at] += (entropy_T**2).sum()
            probs_TE = probs_TE[:, :num_experts]  # of the routed ones: what follows is idle
            sums["prob_sum"][at] += probs_TE.sum(axis=0)
            sums["rank_prob_sum"][at] += np.sort(probs_TE, axis=1)[:, ::-1].sum(axis=0)
            for token, ids in enumerate(watched.ids_TK.tolist()):
                for place, expert in enumerate(ids):
                    if expert >= num_experts:
                        continue
                    gate, norm = gates_TK[token, place], norms_TK[token, place]
                    weighted = norm if on_input else gate * norm
                    where = (*at, expert)
                    sums["count"][where] += 1
                    sums["gate_sum"][where] += gate
                    sums["norm_sum"][where] += norm
                    sums["norm_sq_sum"][where] += norm**2
                    sums["gate_norm_sum"][where] += weighted
                    sums["gate_norm_sq_sum"][where] += weighted**2
                    sums["prob_norm_sum"][where] += probs_TE[token, expert] * norm
                    sums["norm_max"][where] = max(sums["norm_max"][where], norm)
    return sums


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

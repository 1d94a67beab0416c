"""What a loss says of each expert, computed the slow way and without any code of moeprune.

One document at a time through the plain model of the library, autograd of the whole of it, and for
every expert a copy of its block that really has no such expert: its weights are cut out, or, where
experts stand in groups that a missing one would break, its selection bias is −inf. What a block
without the expert gives differs from what the block gives by δ.

T tokens, L MoE layers, E experts, K chosen, H hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from slow_reference import ROUTER, moe_blocks
from torch import Tensor, nn

FOLDS = 4
LE_FIELDS = (
    "fisher_sum",
    "fisher_cf_sum",
    "abs_cf_sum",
    "drop_change_sum",
    "drop_change_sq_sum",
    "cf_change_sum",
    "cf_change_sq_sum",
    "cf_change_abs_sum",
)


@dataclass(frozen=True)
class Changed:
    """One layer and document: what leaving out each expert does to each token.

    Attributes:
        chosen_TE: bool, which experts a token visits.
        gamma_TH: gradient of the document's loss by what the block gives.
        delta_TEH: what the block gives without the expert, less what it gives.
        drop_TEH: what it gives without the expert's share, and no other in its place, less y.
    """

    chosen_TE: Tensor
    gamma_TH: Tensor
    delta_TEH: Tensor
    drop_TEH: Tensor

    def cf_TE(self) -> Tensor:
        return torch.einsum("th,teh->te", self.gamma_TH, self.delta_TEH) * self.chosen_TE

    def dropped_TE(self) -> Tensor:
        return torch.einsum("th,teh->te", self.gamma_TH, self.drop_TEH) * self.chosen_TE


def loss_of(
    model: Any, ids: Sequence[int], targets: Sequence[bool], temperature: float = 1.0
) -> Tensor:
    """Nats that the model gives the target tokens, summed; token p is told by what is before it."""
    logits_TV = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0] / temperature
    lost = logits_TV.new_zeros(())
    for place, (token, target) in enumerate(zip(ids, targets, strict=True)):
        if target:
            assert place > 0
            lost = lost - torch.log_softmax(logits_TV[place - 1], dim=-1)[token]
    return lost


def slow_changes(
    model: Any,
    family: str,
    ids: Sequence[int],
    targets: Sequence[bool],
    temperature: float = 1.0,
) -> tuple[dict[int, Changed], float]:
    """Layer -> what leaving out its experts does to one document, and the document's loss.

    The changes are of the loss at the temperature, the loss is the plain one.
    """
    blocks = moe_blocks(model, family)
    inputs: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    undo = []
    for layer, block in blocks.items():

        def keep(_module: Any, given: Any, output: Any, layer: int = layer) -> None:
            inputs[layer] = given[0].detach().reshape(-1, given[0].shape[-1])
            outputs[layer] = _first(output)
            outputs[layer].retain_grad()

        undo.append(block.register_forward_hook(keep))
    with torch.enable_grad():
        loss_of(model, ids, targets, temperature).backward()
    for hook in undo:
        hook.remove()
    found = {}
    with torch.no_grad():
        lost = loss_of(model, ids, targets)
        for layer, block in blocks.items():
            gamma_TH = outputs[layer].grad.reshape(inputs[layer].shape)
            found[layer] = _changed(block, family, inputs[layer], gamma_TH)
    return found, lost.item()


def _changed(block: nn.Module, family: str, x_TH: Tensor, gamma_TH: Tensor) -> Changed:
    y_TH = _run(block, x_TH)
    ids_TK, weights_TK = asked(block, family, x_TH)
    experts = _num_experts(block)
    chosen_TE = torch.zeros(len(x_TH), experts, dtype=torch.bool).scatter_(1, ids_TK, True)
    delta, drop = [], []
    whole_TH = block.experts(x_TH, ids_TK, weights_TK)
    for e, without in enumerate(blocks_without(block, family)):
        delta.append(_run(without, x_TH) - y_TH)
        rest_TK = weights_TK.masked_fill(ids_TK == e, 0.0)
        drop.append(block.experts(x_TH, ids_TK, rest_TK) - whole_TH)
    return Changed(chosen_TE, gamma_TH, torch.stack(delta, 1), torch.stack(drop, 1))


def asked(block: nn.Module, family: str, x_TH: Tensor) -> tuple[Tensor, Tensor]:
    """The router's choice and its weights, (T, K) each."""
    _, weights_TK, ids_TK = getattr(block, ROUTER.get(family, "gate"))(x_TH)
    return ids_TK, weights_TK


def blocks_without(block: nn.Module, family: str) -> Iterator[nn.Module]:
    """For each expert, a copy of the block that cannot visit it."""
    for e in range(_num_experts(block)):
        without = copy.deepcopy(block)
        router = getattr(without, ROUTER.get(family, "gate"))
        if hasattr(router, "e_score_correction_bias"):
            router.e_score_correction_bias[e] = -torch.inf
        else:
            for module in (router, without.experts):
                _cut(module, e)
        yield without


def _cut(module: nn.Module, e: int) -> None:
    """Take the expert's slice out of every weight of a router or of an experts module."""
    for name, value in list(module.named_parameters()):
        rest = torch.cat([value[:e], value[e + 1 :]])
        setattr(module, name, nn.Parameter(rest, requires_grad=False))
    module.num_experts -= 1
    if hasattr(module, "top_k"):
        module.top_k = min(module.top_k, module.num_experts)


def _run(block: nn.Module, x_TH: Tensor) -> Tensor:
    return _first(block(x_TH[None])).reshape(x_TH.shape)


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _num_experts(block: nn.Module) -> int:
    return int(block.experts.gate_up_proj.shape[0])


def slow_loss_sums(
    model: Any,
    family: str,
    documents: Sequence[Sequence[int]],
    targets: Sequence[Sequence[bool]],
    temperature: float = 1.0,
) -> dict[str, np.ndarray]:
    """Every field that a loss gives one domain's stats, by the definitions in words.

    ``model`` is a plain one, with eager experts and weights that ask for gradients.
    """
    blocks = moe_blocks(model, family)
    layers = sorted(blocks)
    experts = _num_experts(blocks[layers[0]])
    sums = {name: np.zeros((FOLDS, len(layers), experts)) for name in LE_FIELDS}
    sums |= {"loss_sum": np.zeros(FOLDS), "loss_tokens": np.zeros(FOLDS)}
    for number, (ids, target) in enumerate(zip(documents, targets, strict=True)):
        fold = number % FOLDS
        if not any(target):
            continue
        changes, lost = slow_changes(model, family, ids, target, temperature)
        sums["loss_sum"][fold] += lost
        sums["loss_tokens"][fold] += sum(target)
        for row, layer in enumerate(layers):
            _add_document(sums, (fold, row), changes[layer])
    return sums


def _add_document(sums: dict[str, np.ndarray], at: tuple[int, int], changed: Changed) -> None:
    drop_TE, cf_TE = changed.dropped_TE().tolist(), changed.cf_TE().tolist()
    for e in range(changed.chosen_TE.shape[1]):
        visits = [t for t, chosen in enumerate(changed.chosen_TE[:, e].tolist()) if chosen]
        drop = [drop_TE[t][e] for t in visits]
        cf = [cf_TE[t][e] for t in visits]
        where = (*at, e)
        sums["fisher_sum"][where] += sum(value**2 for value in drop)
        sums["fisher_cf_sum"][where] += sum(value**2 for value in cf)
        sums["abs_cf_sum"][where] += sum(abs(value) for value in cf)
        sums["drop_change_sum"][where] += sum(drop)
        sums["drop_change_sq_sum"][where] += sum(drop) ** 2
        sums["cf_change_sum"][where] += sum(cf)
        sums["cf_change_sq_sum"][where] += sum(cf) ** 2
        sums["cf_change_abs_sum"][where] += abs(sum(cf))

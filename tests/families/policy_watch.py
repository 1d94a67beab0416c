"""What the experts of a model are given while its routers follow a policy: ids and weights.

T tokens, E experts, K chosen.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from family_data import FamilyData

from moeprune.core.layout import MoeLayout
from moeprune.observe.layers import moe_layers

IDS = list(range(5, 21))


@dataclass(kw_only=True)
class Given:
    """One layer, one time that it runs."""

    row: int
    logits_TE: torch.Tensor
    ids_TK: torch.Tensor
    weights_TK: torch.Tensor
    shared_TS: torch.Tensor | None


@torch.no_grad()
def given(model: Any, layout: MoeLayout, data: FamilyData) -> list[Given]:
    """Every MoE layer of ``model`` on ``IDS``, with ids ascending."""
    found: list[Given] = []
    with ExitStack() as stack:
        for layer in moe_layers(model, layout):
            for handle in _watched(layer, data, found):
                stack.callback(handle.remove)
        torch.manual_seed(0)
        model(input_ids=torch.tensor([IDS]), use_cache=False)
    return found


def _watched(layer: Any, data: FamilyData, found: list[Given]) -> list[Any]:
    kept: dict[str, Any] = {}

    def experts(_module: Any, args: Any, kwargs: Any) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if torch.is_tensor(value)]
        hidden, *choice = tensors
        ids_TK = next(value for value in choice if not value.is_floating_point())
        weights_TK = next(value for value in choice if value.is_floating_point())
        ids_TK, order_TK = ids_TK.long().sort(dim=-1)
        out = kept["router"]
        logits = kept.get("logits", out if torch.is_tensor(out) else out[0])
        shared_TS = None
        if data.router["weights"] == "joint":  # the last rows are those of shared experts
            hidden_TH = hidden.reshape(-1, hidden.shape[-1])
            shared_TS = (hidden_TH @ layer.router.weight[layer.num_experts :].T).double()
        found.append(
            Given(
                row=layer.row,
                logits_TE=logits.reshape(-1, logits.shape[-1]).double(),
                ids_TK=ids_TK,
                weights_TK=weights_TK.gather(-1, order_TK).double(),
                shared_TS=shared_TS,
            )
        )

    handles = [
        layer.router.register_forward_hook(lambda _m, _i, out: kept.update(router=out)),
        layer.experts.register_forward_pre_hook(experts, with_kwargs=True),
    ]
    if data.logits:
        inner = layer.router.get_submodule(data.logits)
        handles.append(inner.register_forward_hook(lambda _m, _i, out: kept.update(logits=out)))
    return handles

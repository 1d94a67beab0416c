"""What gate weights sum to, as routers return them."""

from __future__ import annotations

import pytest
import torch
from conftest import Tiny

from moeprune.core.policy import RoutingPolicy
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.routing.weight_sums import weight_sums
from moeprune.stages.identify import open_model
from moeprune.stages.policies import policy_applied

TEXTS = [list(range(3, 40)), list(range(60, 70))]


def test_of_all_tokens_and_of_no_more_logits_than_one(tiny: Tiny) -> None:
    path = tiny("qwen3_moe")
    model, layout = load_causal_lm(path), open_model(path).layout
    routers = {f"{row}": layer.router for row, layer in enumerate(moe_layers(model, layout))}
    seen: list[torch.Size] = []
    sums = dict.fromkeys(routers, 0.0)
    handles = [
        model.lm_head.register_forward_pre_hook(lambda _m, args: seen.append(args[0].shape)),
        *(
            router.register_forward_hook(
                lambda _m, _i, out, name=name: sums.update({name: sums[name] + float(out[1].sum())})
            )
            for name, router in routers.items()
        ),
    ]
    with policy_applied(model, layout, RoutingPolicy(k1=2, k2=5)):
        found = weight_sums(model, routers, TEXTS, device=torch.device("cpu"))
    for handle in handles:
        handle.remove()
    assert [shape[1] for shape in seen] == [1, 1], "a vocabulary times a text is much memory"
    tokens = sum(map(len, TEXTS))
    assert found == pytest.approx({name: total / tokens for name, total in sums.items()}, rel=1e-5)
    assert all(0 < value < 1 for value in found.values())

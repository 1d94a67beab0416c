"""The self-check: what it sees on a sound model, and each way to fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Tiny
from tiny import tiny_checkpoint

from moeprune.core.layout import MoeLayout
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import UnsupportedModelError, VerificationError
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.routing.policy import Hits
from moeprune.routing.selfcheck import check_routing
from moeprune.stages.identify import open_model
from moeprune.stages.policies import self_check

IDS = list(range(3, 35))


def loaded(path: Path) -> tuple[Any, MoeLayout]:
    return load_causal_lm(path), open_model(path).layout


def test_what_it_sees(tiny: Tiny) -> None:
    model, layout = loaded(tiny("qwen3_moe"))
    found = self_check(model, layout, IDS)
    with torch.no_grad():
        ids = torch.tensor([IDS])
        loss = float(model(input_ids=ids, labels=ids).loss)
    assert found.loss == pytest.approx(loss, rel=1e-6)
    assert found.other == RoutingPolicy(k1=2, k2=3)
    assert found.to_json() == {
        "routers": 3,
        "fixed_routers": 0,
        "calls": 3,
        "native_loss": found.loss,
        "compared": {"k1": 2, "k2": 3},
        "compared_loss": found.other_loss,
    }


@pytest.mark.parametrize(("experts", "k1"), [(6, 2), (1, 1)])
def test_where_one_expert_runs(experts: int, k1: int, tmp_path: Path) -> None:
    path = tiny_checkpoint(
        "qwen3_moe", tmp_path / "one", num_experts=experts, num_experts_per_tok=1
    )
    model, layout = loaded(path)
    found = self_check(model, layout, IDS)
    assert found.other.k1 == k1 and (found.loss == found.other_loss) == (experts == 1)


def test_a_layer_that_is_not_reached_is_named(tiny: Tiny) -> None:
    """As a patch of the class fails on a model that accelerate has dispatched."""
    model, layout = loaded(tiny("qwen3_moe"))
    for number in (0, 2, 3):
        block = model.get_submodule(f"model.layers.{number}.mlp")
        unreached(block, number)
    with pytest.raises(VerificationError, match=r"model\.layers\.0\.mlp\.gate 0 of 1, model\.lay"):
        self_check(model, layout, IDS)


def unreached(block: Any, number: int) -> None:
    own, experts, router = type(block.gate).forward, block.experts, block.gate

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        _, weights, ids = own(router, flat)
        out: torch.Tensor = experts(flat, ids, weights)
        return out.reshape(hidden.shape)

    block.forward = forward


def test_a_policy_that_changes_nothing_is_an_error(tiny: Tiny) -> None:
    model, layout = loaded(tiny("mixtral"))
    with torch.no_grad():
        for layer in moe_layers(model, layout):
            layer.experts.down_proj.zero_()
    with pytest.raises(
        VerificationError, match=r"k1=1 k2=2 gives the same loss as the native k1=2"
    ):
        self_check(model, layout, IDS)


def test_a_native_pair_that_moves_logits_is_an_error(tiny: Tiny) -> None:
    model, _ = loaded(tiny("mixtral"))

    @contextmanager
    def applied(_policy: RoutingPolicy) -> Iterator[Hits]:
        with torch.no_grad():
            model.lm_head.weight[5] += 1e-2
        yield Hits(calls={"router": 1})
        with torch.no_grad():
            model.lm_head.weight[5] -= 1e-2

    with pytest.raises(
        VerificationError, match=r"native policy \(k1=2 k2=2\) moves logits by 0\.0"
    ):
        check_routing(
            model,
            IDS,
            native=RoutingPolicy(k1=2, k2=2),
            most=10,
            due={"router": 1},
            applied=applied,
        )


def test_a_family_without_policies_says_so(tiny: Tiny) -> None:
    model, layout = loaded(tiny("llama4_text"))
    with pytest.raises(UnsupportedModelError, match="do not fit family llama4_text"):
        self_check(model, layout, IDS)

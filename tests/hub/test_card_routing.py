"""The model card of exports with k₁ and k₂."""

from __future__ import annotations

import dataclasses

import pytest
from huggingface_hub import ModelCard
from test_card import PLAN, rows

from moeprune.core.cost import Activated, Cost
from moeprune.core.facts import ModelFacts
from moeprune.core.policy import RoutingPolicy
from moeprune.hub.card import model_card

FACTS = ModelFacts(
    name="org/model",
    fingerprint="0" * 64,
    model_type="qwen3_moe",
    layer_ids=(0, 2),
    num_experts=(128, 128),
    top_k=8,
    num_groups=1,
    top_groups=1,
    gating="softmax",
    total_bytes=1 << 30,
    expert_bytes=(1000, 1000),
)
NATIVE = RoutingPolicy(k1=8, k2=8)
CHANGED = {"policy": RoutingPolicy(k1=4, k2=16), "native": NATIVE, "facts": FACTS}


def test_of_all_experts() -> None:
    text = model_card(None, source="org/model", **CHANGED)
    card = ModelCard(text)
    assert card.data.to_dict()["tags"] == ["moeprune", "mixture-of-experts"]
    assert card.data.to_dict()["base_model"] == "org/model"
    table = rows(text)
    assert ["Experts run per token (k₁)", "8 → 4"] in table
    assert ["Their weights are divided by the sum of the top (k₂)", "8 → 16"] in table
    assert ["Routed experts per layer", "128 (unchanged)"] in table
    assert "trust_remote_code=True)" in text and "```bash" not in text
    for word in ("pruned", "Kept experts", "Calibration", "router mass"):
        assert word not in text, word
    assert "Halving the Activated Experts" in text


@pytest.mark.parametrize("form", ["uniform", "padded", "per-layer"])
def test_with_a_plan(form: str) -> None:
    keep = PLAN.keep if form == "uniform" else (PLAN.keep[0][:-1], *PLAN.keep[1:])
    text = model_card(dataclasses.replace(PLAN, keep=keep), source="x", form=form, **CHANGED)
    assert "## How it was pruned" in text and "## Routing" in text
    assert "trust_remote_code=True)" in text
    assert "(unchanged)" not in text and "compute per token does not" not in text
    loads = "the routing of the source: 8 experts per token" in text
    assert loads == (form != "per-layer") == ("does not load:" not in text)


def test_without_k1_and_k2_nothing_is_said() -> None:
    assert "k₁" not in model_card(PLAN, source="x", facts=FACTS, native=NATIVE)


@pytest.mark.parametrize(
    ("k1", "k2", "says", "says_not"),
    [
        (1, 8, ("# org/model, 1 expert per token", "1 expert runs per token in place of 8"), ""),
        (4, 8, ("4 experts run per token in place of 8", "correct and not faster"), ""),
        (9, 8, ("# org/model, 9 experts per token", "experts per token, correct |"), "not faster"),
        (
            8,
            16,
            (
                "# org/model, weights over its top 16",
                "over the router's top 16. Every",
                "as in the source",
            ),
            "another number of experts",
        ),
    ],
)
def test_what_differs_is_said(k1: int, k2: int, says: tuple[str, ...], says_not: str) -> None:
    text = model_card(None, source="org/model", **CHANGED | {"policy": RoutingPolicy(k1=k1, k2=k2)})
    for words in says:
        assert words in text, words
    assert not says_not or says_not not in text


@pytest.mark.parametrize(("total", "change"), [(150, "−25.0%"), (250, "+25.0%")])
def test_a_change_of_cost_has_its_sign(total: int, change: str) -> None:
    def activated(routed: int) -> Activated:
        return Activated(
            routed=routed, shared=0, other=100, routed_bytes=routed, bytes_per_token=routed + 100
        )

    token = Cost(activated=activated(total - 100), native=activated(100))
    assert f"({change})" in model_card(None, source="x", token=token, **CHANGED)

"""Every family under k₁ and k₂: the weights that its experts are given equal the slow reference."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_data import (
    FamilyData,
    family_data,
    family_files,
    load,
    logits_of,
    params,
    text_model,
    write_checkpoint,
)
from forward_reference import expert_scale, selection_bias
from policy_watch import IDS, given
from router_reference import policy_by

from moeprune.architectures import load_family
from moeprune.core.layout import MoeLayout
from moeprune.core.policy import ABLATIONS, RoutingPolicy
from moeprune.errors import UnknownFamilyError, UnsupportedModelError
from moeprune.observe.layers import moe_layers
from moeprune.stages.identify import open_model
from moeprune.stages.policies import policy_applied, self_check

FIXED = {"jetmoe", "llama4", "llama4_text", "phimoe", "zaya"}

Loaded = tuple[FamilyData, Any, MoeLayout]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    """Checkpoints, written and loaded once for all tests of this file."""
    made: dict[str, Loaded] = {}

    def get(name: str) -> Loaded:
        if name not in made:
            data = family_data(name)
            path = write_checkpoint(data, tmp_path_factory.mktemp(name) / name)
            made[name] = data, text_model(data, load(data, path)[0]), open_model(path).layout
        return made[name]

    return get


def routed(names: list[Any]) -> list[Any]:
    return [param for param in names if param.values[0] not in FIXED]


def policies(layout: MoeLayout, *, few: bool) -> list[RoutingPolicy]:
    """Below, at and above the native k; all experts; the denominator of fewer than run."""
    wide = layout.num_experts[0]
    held = wide * layout.top_groups // layout.num_groups
    pairs = {(1, 1), (1, 3), (2, 2), (2, 5), (2, 8), (3, 1), (3, 3), (4, 2), (2, wide), (3, wide)}
    pairs |= {(held, held), (held, 1), (held, wide), (5, wide + 7)}
    if few:
        pairs = {(2, 5), (3, 1), (2, wide), (held, wide)}
    least = layout.least_top_k
    found = [RoutingPolicy(k1=k1, k2=k2) for k1, k2 in sorted(pairs) if k1 >= least]
    if layout.model_type == "axk2":  # experts of other groups rank above scores below zero
        return [one for one in found if max(one.k1, one.k2 % wide) <= layout.top_k + 2]
    return found


@pytest.mark.parametrize("name", routed(params()))
def test_weights_that_experts_are_given(
    name: str, loaded: Callable[[str], Loaded], request: pytest.FixtureRequest
) -> None:
    few = request.node.get_closest_marker("families") is None
    check_weights(*loaded(name), few=few)


def flipped(data: FamilyData) -> FamilyData | None:
    """The family with the other answer to whether it renormalises, where config.json says it."""
    inner = data.config.get("text_config", {})
    try:
        rule = load_family(inner.get("model_type"), data.model_type).renormalises
    except UnknownFamilyError:
        return None
    weights = {"normalised": "scores", "scores": "normalised"}.get(data.router["weights"])
    if not isinstance(rule, str | tuple) or rule in ("always", "never") or weights is None:
        return None
    router = {**data.router, "weights": weights}
    if data.model_type == "dbrx":
        off = {**data.config["ffn_config"], "moe_normalize_expert_weights": None}
        return replace(data, router=router, config={**data.config, "ffn_config": off})
    if "thinker_config" in data.config:
        return None
    name = rule if isinstance(rule, str) else rule[0]
    key = {name: weights == "normalised"}
    config = {**data.config, "text_config": {**inner, **key}} if inner else {**data.config, **key}
    return replace(data, router=router, config=config)


@pytest.mark.families
@pytest.mark.parametrize("name", [name for name in family_files() if flipped(family_data(name))])
def test_weights_of_the_other_setting(name: str, tmp_path: Path) -> None:
    data = flipped(family_data(name))
    assert data is not None
    path = write_checkpoint(data, tmp_path / name)
    layout = open_model(path).layout
    assert layout.renormalises == (data.router["weights"] == "normalised")
    model = text_model(data, load(data, path)[0])
    check_weights(data, model, layout, few=True)
    assert self_check(model, layout, IDS).routers


def check_weights(data: FamilyData, model: Any, layout: MoeLayout, *, few: bool) -> None:
    """What experts are given under policies equals the slow reference."""
    layers = moe_layers(model, layout)
    places = {id(layer.router): place for place, layer in enumerate(layers)}
    biases, factors = selection_bias(model, layout), expert_scale(model, layout)
    by_row = {layer.row: places[id(layer.router)] for layer in layers}
    looked_up = {layer.row for layer in layers if hasattr(layer.router, "tid2eid")}
    native = {one.row: one for one in given(model, layout, data)}
    for policy in policies(layout, few=few):
        with policy_applied(model, layout, policy) as hits:
            found = given(model, layout, data)
        passes = layout.passes or (1,) * len(layout.layer_ids)
        stacks = len(layout.stacks) or 1
        assert len(found) == sum(passes) * stacks == sum((hits.calls | hits.native).values())
        assert len(hits.native) == len(looked_up)
        for one in found:
            if one.row in looked_up:
                assert (one.ids_TK == native[one.row].ids_TK).all()
                assert one.weights_TK.sum(-1).allclose(native[one.row].weights_TK.sum(-1))
                continue
            bias_E, factor_E = biases[by_row[one.row]], factors[by_row[one.row]]
            ids_TK, weights_TK = policy_by(
                one.logits_TE.numpy(),
                bias_E,
                rule=data.router,
                gating=layout.gating,
                k1=policy.k1,
                k2=policy.k2,
                num_experts=layout.num_experts[one.row],
                shared_TS=None if one.shared_TS is None else one.shared_TS.numpy(),
            )
            if factor_E is not None:
                weights_TK = weights_TK * factor_E[ids_TK]
            assert (one.ids_TK.numpy() == ids_TK).all(), policy
            np.testing.assert_allclose(
                one.weights_TK.numpy(), weights_TK, rtol=2e-6, atol=1e-6, err_msg=policy.label
            )
            assert one.ids_TK.shape == (len(one.logits_TE), policy.k1)


@pytest.mark.parametrize("name", routed(params()))
def test_the_native_pair_changes_no_bit(name: str, loaded: Callable[[str], Loaded]) -> None:
    _, model, layout = loaded(name)
    before = {key: dict(module.__dict__) for key, module in model.named_modules()}
    plain = logits_of(model, IDS)
    with policy_applied(model, layout, layout.native_policy):
        assert torch.equal(logits_of(model, IDS), plain)
    report = self_check(model, layout, IDS)
    assert report.loss != report.other_loss
    layers = moe_layers(model, layout)
    passes = layout.passes or (1,) * len(layout.layer_ids)
    assert report.calls == sum(passes[layer.row] for layer in layers)
    assert report.routers + report.fixed == len(layers)
    assert torch.equal(logits_of(model, IDS), plain)
    for key, module in model.named_modules():
        assert module.__dict__.keys() == before[key].keys(), key
        assert module.__dict__.get("config") is before[key].get("config")
        assert module.__dict__.get("top_k") == before[key].get("top_k")


@pytest.mark.parametrize("name", [p for p in params() if p.values[0] in FIXED])
def test_a_family_that_cannot_says_why(name: str, loaded: Callable[[str], Loaded]) -> None:
    _, model, layout = loaded(name)
    assert layout.fixed_routing
    with (
        pytest.raises(UnsupportedModelError, match=re.escape(layout.fixed_routing)) as caught,
        policy_applied(model, layout, RoutingPolicy(k1=1, k2=1)),
    ):
        pass
    assert "\n" not in str(caught.value) and layout.model_type in str(caught.value)


def test_the_families_that_cannot_are_these() -> None:
    assert set(family_files()) >= FIXED


@pytest.mark.parametrize("kind", ABLATIONS)
def test_a_learned_factor_is_no_part_of_the_probability(
    kind: str, loaded: Callable[[str], Loaded], tmp_path: Path
) -> None:
    """Gemma 4 multiplies each weight by its expert's own factor at last."""
    from transformers import AutoModelForCausalLM

    data, model, layout = loaded("gemma4_text")
    policy = RoutingPolicy(k1=3, k2=5, ablation=kind)
    model.save_pretrained(tmp_path / "saved")
    placed = AutoModelForCausalLM.from_pretrained(
        tmp_path / "saved",
        device_map={"": "disk"},
        offload_folder=str(tmp_path / "disk"),
        experts_implementation="eager",  # the same bits: no expert changes its rank
    ).eval()
    found = []
    for live in (model, placed):  # of the second no factor is in memory outside of its forward
        with policy_applied(live, layout, policy):
            found.append(logits_of(live, IDS))
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)
    factor_E = moe_layers(model, layout)[0].router.per_expert_scale
    former_E = factor_E.detach().clone()

    def first() -> tuple[torch.Tensor, torch.Tensor]:
        with policy_applied(model, layout, policy):
            one = given(model, layout, data)[0]
        return one.weights_TK / factor_E.detach()[one.ids_TK], one.ids_TK

    before_TK, ids_TK = first()
    with torch.no_grad():
        factor_E.copy_(torch.linspace(1, 50, 12))
    after_TK, again_TK = first()
    assert torch.equal(again_TK, ids_TK)
    torch.testing.assert_close(after_TK, before_TK, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        factor_E.fill_(0)
        assert not first()[0].nan_to_num(0).any()
        factor_E.copy_(former_E)

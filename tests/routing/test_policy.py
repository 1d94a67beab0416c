"""A policy on live models: where it acts, that it lets go, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Tiny
from plans import plan_keeping
from tiny import tiny_checkpoint
from uneven import uneven_plan

import moeprune
from moeprune.core.layout import MoeLayout
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import UnsupportedModelError, UsageError, VerificationError
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.routing.mask import masked_experts
from moeprune.stages.identify import open_model
from moeprune.stages.policies import policy_applied, self_check

IDS = torch.arange(3, 51).reshape(2, 24)
POLICY = RoutingPolicy(k1=2, k2=5)


def loaded(path: Path, **options: Any) -> tuple[Any, MoeLayout]:
    return load_causal_lm(path, **options), open_model(path).layout


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return found


def under(model: Any, layout: MoeLayout, policy: RoutingPolicy = POLICY) -> torch.Tensor:
    with policy_applied(model, layout, policy):
        return logits(model)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_weights_on_a_disk_follow_it_too(family: str, tiny: Tiny, tmp_path: Path) -> None:
    """accelerate puts a forward on each instance: a patch of a class would not be reached."""
    from transformers import AutoModelForCausalLM

    model, layout = loaded(tiny(family))
    placed = AutoModelForCausalLM.from_pretrained(
        tiny(family), device_map={"": "disk"}, offload_folder=str(tmp_path)
    ).eval()
    plain, want = logits(placed), under(model, layout)
    with policy_applied(placed, layout, POLICY) as hits:
        found = logits(placed)
    assert set(hits.calls.values()) == {1} and len(hits.calls) == len(layout.layer_ids)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-6)
    assert (found - plain).abs().max() > 1e-3
    with policy_applied(placed, layout, layout.native_policy):
        assert torch.equal(logits(placed), plain)
    assert self_check(placed, layout, IDS[0].tolist()) == self_check(model, layout, IDS[0].tolist())
    assert torch.equal(logits(placed), plain)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_text_is_written_with_it(family: str, tiny: Tiny) -> None:
    """Token by token with a cache, as by reading each beginning whole."""
    model, layout = loaded(tiny(family))
    ids, policy = IDS[:1], RoutingPolicy(k1=1, k2=12)
    native = model.generate(ids, max_new_tokens=12, do_sample=False, use_cache=True)
    with policy_applied(model, layout, policy) as hits:
        written = model.generate(ids, max_new_tokens=12, do_sample=False, use_cache=True)
        forwards = set(hits.calls.values())
        slow = ids
        for _ in range(written.shape[1] - ids.shape[1]):
            slow = torch.cat([slow, logits(model, slow)[:, -1:].argmax(-1)], dim=1)
    assert forwards == {written.shape[1] - ids.shape[1]}
    assert torch.equal(written, slow)
    assert not torch.equal(native, written)


@pytest.mark.parametrize("family", ["qwen3_moe", "glm4_moe"])
def test_every_experts_implementation_follows_it(family: str, tiny: Tiny) -> None:
    model, layout = loaded(tiny(family))
    found = {}
    for implementation in ("eager", "batched_mm", "grouped_mm"):
        model.set_experts_implementation(implementation)
        found[implementation] = under(model, layout)
        plain = logits(model)
        with policy_applied(model, layout, layout.native_policy):
            assert torch.equal(logits(model), plain)
        assert (found[implementation] - plain).abs().max() > 1e-3
    for one in found.values():
        torch.testing.assert_close(one, found["eager"], rtol=0, atol=1e-5)


def masked(model: Any, layout: MoeLayout, removed: Any) -> Any:
    layers = moe_layers(model, layout)
    return masked_experts(
        model,
        routers=[layer.router for layer in layers],
        num_experts=[layer.num_experts for layer in layers],
        removed=[removed[layer.row] for layer in layers],
    )


@pytest.mark.parametrize("k2", [2, 6, 9, 10, 12])
@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss"])
def test_around_a_masked_plan_as_on_its_export(
    family: str, k2: int, tiny: Tiny, tmp_path: Path
) -> None:
    """9 of 12 experts stay: 9 and more are all of them, in one model as in the other."""
    source = tiny(family)
    model, layout = loaded(source)
    rows = range(len(layout.layer_ids))
    plan = plan_keeping(source, [[e for e in range(12) if e % 4 != row % 3] for row in rows])
    out = moeprune.export(source, plan=plan, output=tmp_path / "out")
    policy = RoutingPolicy(k1=2, k2=k2)
    small, small_layout = loaded(out)
    want = under(small, small_layout, policy)
    with masked(model, layout, plan.removed), policy_applied(model, layout, policy, plan.keep):
        found = logits(model)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


def test_layers_of_other_counts(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("qwen3_moe")
    plan = uneven_plan(source)
    out = moeprune.export(source, plan=plan, output=tmp_path / "out", per_layer=True)
    full, whole = loaded(source)
    small = load_causal_lm(out, trust_remote_code=True)
    layout = replace(whole, num_experts=tuple(map(len, plan.keep)))
    assert layout.num_experts == (11, 10, 12)
    for k2 in (3, 10, 11, 12):
        policy = RoutingPolicy(k1=2, k2=k2)
        with masked(full, whole, plan.removed), policy_applied(full, whole, policy, plan.keep):
            want = logits(full)
        torch.testing.assert_close(under(small, layout, policy), want, rtol=0, atol=1e-5)
    with pytest.raises(UsageError, match=r"--k1 11 is too many: layer 2 has 10 experts"):
        under(small, layout, RoutingPolicy(k1=11, k2=11))


def test_one_layer(tmp_path: Path) -> None:
    path = tiny_checkpoint("mixtral", tmp_path / "one", num_hidden_layers=1)
    model, layout = loaded(path)
    plain = logits(model)
    assert torch.equal(under(model, layout, RoutingPolicy(k1=2, k2=2)), plain)
    assert not torch.equal(under(model, layout, RoutingPolicy(k1=1, k2=2)), plain)


@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"])
def test_bfloat16(family: str, tiny: Tiny) -> None:
    """Weights come in the type that the router returns, to its precision."""
    model, layout = loaded(tiny(family))
    exact = seen_weights(model, layout, POLICY)
    model.to(torch.bfloat16)
    native = logits(model)
    assert torch.equal(under(model, layout, layout.native_policy), native)
    for (want, _), (have, router) in zip(exact, seen_weights(model, layout, POLICY), strict=True):
        assert have.dtype == router
        torch.testing.assert_close(have.float().median(), want.median(), rtol=0.1, atol=0.01)


def seen_weights(model: Any, layout: MoeLayout, policy: RoutingPolicy) -> list[Any]:
    """Of each layer the weights under ``policy``, and the type of the router's own."""
    own: list[torch.dtype] = []
    found: list[torch.Tensor] = []
    for layer in moe_layers(model, layout):
        layer.router.register_forward_hook(lambda _m, _i, out: own.append(out[1].dtype))
    logits(model)
    plain = own.copy()
    for layer in moe_layers(model, layout):
        layer.router.register_forward_hook(lambda _m, _i, out: found.append(out[1]))
    under(model, layout, policy)
    return list(zip(found, plain, strict=True))


def test_the_gain_multiplies_each_weight(tiny: Tiny) -> None:
    model, layout = loaded(tiny("deepseek_v3"))
    count = len(layout.layer_ids)
    gains = tuple(0.5 + row for row in range(count))
    plain = seen_weights(model, layout, POLICY)
    one = seen_weights(model, layout, RoutingPolicy(k1=2, k2=5, gain=0.25))
    each = seen_weights(model, layout, RoutingPolicy(k1=2, k2=5, gain=gains))
    torch.testing.assert_close(one[0][0], 0.25 * plain[0][0])
    torch.testing.assert_close(each[0][0], gains[0] * plain[0][0])
    with pytest.raises(UsageError, match=f"--gain has 5 numbers, the model {count} MoE layers"):
        under(model, layout, RoutingPolicy(k1=2, k2=5, gain=(1.0,) * 5))


def test_a_gain_of_folded_experts(tiny: Tiny) -> None:
    """A factor of each weight is a factor of what each expert gives."""
    model, layout = loaded(tiny("qwen3_moe"))
    gains = (0.5, 1.25, 2.0)
    want = under(model, layout, RoutingPolicy(k1=2, k2=2, gain=gains))
    with torch.no_grad():
        for layer, gain in zip(moe_layers(model, layout), gains, strict=True):
            layer.experts.down_proj.mul_(gain)
    found = under(model, layout, RoutingPolicy(k1=2, k2=2))
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


def test_the_model_is_as_before_after_an_error(tiny: Tiny) -> None:
    model, layout = loaded(tiny("gpt_oss"))
    plain = logits(model)
    with pytest.raises(ValueError, match="inside"), policy_applied(model, layout, POLICY):
        raise ValueError("inside")
    assert torch.equal(logits(model), plain)
    router = moe_layers(model, layout)[0].router
    with pytest.raises(RuntimeError), policy_applied(model, layout, POLICY):
        router(torch.zeros(2, 5))  # of another width
    assert router.top_k == layout.top_k and "forward" not in router.__dict__


@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe"])
def test_policies_are_not_nested(family: str, tiny: Tiny, tmp_path: Path) -> None:
    """The inner one would be told the outer one's weights for its own, where k1 is the same."""
    source = tiny(family)
    model, layout = loaded(source)
    plain, want = logits(model), under(model, layout, RoutingPolicy(k1=2, k2=5))
    inner = RoutingPolicy(k1=2, k2=2)
    with policy_applied(model, layout, RoutingPolicy(k1=2, k2=5)):
        with pytest.raises(UsageError, match="a policy already"):
            under(model, layout, inner)
        assert torch.equal(logits(model), want)
    assert torch.equal(logits(model), plain)
    out = moeprune.export(source, output=tmp_path / "out", k1=2, k2=5)
    own = load_causal_lm(out, dtype="float32", device="cpu", trust_remote_code=True)
    with pytest.raises(UsageError, match="a policy already"):
        under(own, layout, inner)
    assert torch.equal(logits(own), want)


@pytest.mark.parametrize(
    ("k1", "k2", "message"),
    [
        (13, 13, r"^--k1 13 is too many: layer 1 has 12 experts, of which a token chooses from 8"),
        (9, 12, r"chooses from 8 \(router groups\). Give at most 8.$"),
        (3, 9, r"^--k2 9 means nothing in layer 1: .* hold 8 experts, and the other 4 have no"),
    ],
)
def test_what_groups_do_not_rank_is_refused(k1: int, k2: int, message: str, tiny: Tiny) -> None:
    model, layout = loaded(tiny("deepseek_v3"))
    with pytest.raises(UsageError, match=message):
        under(model, layout, RoutingPolicy(k1=k1, k2=k2))
    under(model, layout, RoutingPolicy(k1=8, k2=12))


def test_weights_on_the_input_are_refused(tiny: Tiny) -> None:
    model, layout = loaded(tiny("llama4_text"))
    with pytest.raises(UnsupportedModelError, match="do not fit family llama4_text: its weights"):
        under(model, layout)


def test_a_router_that_returns_another_number_is_an_error(tiny: Tiny) -> None:
    model, layout = loaded(tiny("qwen3_moe"))
    router = moe_layers(model, layout)[1].router
    router.top_k = 3
    forward = router.forward
    router.forward = lambda hidden: tuple(
        part[..., :3] if place else part for place, part in enumerate(forward(hidden))
    )
    with pytest.raises(VerificationError, match=r"layers\.2\.mlp\.gate: asked for 5 .* returned 3"):
        under(model, layout)


def test_a_router_that_is_not_reached_is_an_error(tiny: Tiny) -> None:
    model, layout = loaded(tiny("qwen3_moe"))
    layer = moe_layers(model, layout)[1]
    block = model.get_submodule("model.layers.2.mlp")
    own = type(layer.router).forward
    block.forward = lambda hidden: layer.experts(
        hidden.reshape(-1, hidden.shape[-1]), *reversed(own(layer.router, hidden)[1:3])
    ).reshape(hidden.shape)
    with pytest.raises(VerificationError, match=r"never reached model\.layers\.2\.mlp\.gate, "):
        under(model, layout)
    with policy_applied(model, layout, POLICY) as hits:
        pass  # nothing ran at all: nothing to say
    assert set(hits.calls.values()) == {0}

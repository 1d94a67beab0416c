"""The paper's three ablations: what stays of a token's weights, what is drawn, and from what."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Tiny

from moeprune.core.layout import MoeLayout
from moeprune.core.policy import ABLATIONS, RoutingPolicy
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.routing.ablations import Ablation
from moeprune.routing.mask import masked_experts
from moeprune.stages.identify import open_model
from moeprune.stages.policies import policy_applied

IDS = torch.arange(3, 51).reshape(2, 24)
Choices = list[tuple[torch.Tensor, torch.Tensor]]


def loaded(path: Path) -> tuple[Any, MoeLayout]:
    return load_causal_lm(path), open_model(path).layout


@torch.no_grad()
def choices(
    model: Any,
    layout: MoeLayout,
    policy: RoutingPolicy,
    *,
    around: AbstractContextManager[Any] | None = None,
    keep: Any = None,
) -> Choices:
    """Weights and ids of each layer; of the first layer alone they are of the same tokens."""
    found: Choices = []
    handles = [
        layer.router.register_forward_hook(lambda _m, _i, out: found.append(out[1:3]))
        for layer in moe_layers(model, layout)
    ]
    with around or nullcontext(), policy_applied(model, layout, policy, keep):
        model(input_ids=IDS, use_cache=False)
    for handle in handles:
        handle.remove()
    return found


def scores(model: Any, layout: MoeLayout) -> torch.Tensor:
    """(T, E) of the first layer, in proportion to the probabilities."""
    everything = RoutingPolicy(k1=12, k2=12)
    (weights, ids), *_ = choices(model, layout, everything)
    return torch.zeros_like(weights).scatter(-1, ids, weights)


@pytest.mark.parametrize("kind", ABLATIONS)
@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe", "glm4_moe"])
def test_a_token_keeps_its_sum_and_drawn_experts_their_ratios(
    family: str, kind: str, tiny: Tiny
) -> None:
    model, layout = loaded(tiny(family))
    (plain, plain_ids), *_ = choices(model, layout, RoutingPolicy(k1=3, k2=5))
    (weights, ids), *_ = choices(model, layout, RoutingPolicy(k1=3, k2=5, ablation=kind))
    torch.testing.assert_close(weights.sum(-1), plain.sum(-1))
    assert all(len(set(row)) == 3 for row in ids.tolist())
    if kind == "uniform":
        assert torch.equal(ids, plain_ids)
        torch.testing.assert_close(weights, plain.mean(-1, keepdim=True).expand_as(weights))
        return
    assert not torch.equal(ids.sort().values, plain_ids.sort().values)
    drawn = scores(model, layout).gather(-1, ids)
    torch.testing.assert_close(weights / weights[:, :1], drawn / drawn[:, :1])


@pytest.mark.parametrize("kind", ["sampled", "random"])
def test_pairs_are_drawn_one_after_the_other(kind: str) -> None:
    """Two of six choices for 40,000 tokens, two of which have no probability."""
    tokens, scores_E = 40_000, torch.tensor([0.1, 0.0, 0.4, 0.3, 0.0, 0.2])

    def run(k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weights, ids = scores_E.expand(tokens, -1).topk(k)
        return weights, weights, ids

    policy = RoutingPolicy(k1=2, k2=2, ablation=kind, seed=5)
    ablation = Ablation.of(policy, torch.nn.Identity(), layer=0, num_choices=6)
    assert ablation is not None
    weights, ids = ablation.apply(run, *run(2)[1:])
    torch.testing.assert_close(weights.sum(-1), torch.full((tokens,), 0.7))
    law_E = scores_E.double() if kind == "sampled" else (scores_E > 0).double() / 4
    for one, other in itertools.combinations(range(6), 2):
        p, q = float(law_E[one]), float(law_E[other])
        wanted = p * q / (1 - p) + q * p / (1 - q)
        share = float(((ids == one).any(-1) & (ids == other).any(-1)).double().mean())
        assert abs(share - wanted) <= 5 * (wanted * (1 - wanted) / tokens) ** 0.5, (one, other)


@pytest.mark.parametrize("kind", ABLATIONS)
def test_a_negative_scale_of_all_weights_is_no_negative_probability(kind: str) -> None:
    """Inkling multiplies its weights by a number that is learned."""
    scores_TE = torch.rand((50, 6), generator=torch.Generator().manual_seed(1))

    def run(k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weights, ids = scores_TE.topk(k)
        return weights, -0.5 * weights, ids

    ablation = Ablation.of(
        RoutingPolicy(k1=2, k2=2, ablation=kind), torch.nn.Identity(), layer=0, num_choices=6
    )
    assert ablation is not None
    own = run(2)[1]
    weights, _ = ablation.apply(run, *run(2)[1:])
    assert (weights < 0).all()
    torch.testing.assert_close(weights.sum(-1), own.sum(-1))


@pytest.mark.parametrize("kind", ["sampled", "random"])
def test_draws_are_the_same_again_and_differ_by_layer_and_seed(kind: str, tiny: Tiny) -> None:
    model, layout = loaded(tiny("olmoe"))

    def drawn(seed: int) -> list[torch.Tensor]:
        policy = RoutingPolicy(k1=3, k2=3, ablation=kind, seed=seed)
        return [ids for _, ids in choices(model, layout, policy)]

    torch.manual_seed(3)
    first = drawn(0)
    torch.manual_seed(4)
    assert all(map(torch.equal, first, drawn(0)))
    assert not any(map(torch.equal, first, drawn(1)))
    if kind == "random":
        assert not torch.equal(first[0], first[1])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["sampled", "random"])
def test_draws_go_by_the_text_and_not_by_what_was_read_before(kind: str, tiny: Tiny) -> None:
    """An evaluation that goes on, or that processes share, draws what a whole one does."""
    model, layout = loaded(tiny("olmoe"))
    policy = RoutingPolicy(k1=3, k2=3, ablation=kind)

    def logits(*texts: torch.Tensor) -> list[torch.Tensor]:
        with policy_applied(model, layout, policy):
            return [model(input_ids=text, use_cache=False).logits for text in texts]

    (alone,) = logits(IDS)
    _, after, again = logits(IDS + 60, IDS, IDS)
    assert torch.equal(alone, after) and torch.equal(alone, again)


@pytest.mark.parametrize("kind", ABLATIONS)
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_a_masked_expert_is_never_drawn(family: str, kind: str, tiny: Tiny) -> None:
    model, layout = loaded(tiny(family))
    layers = moe_layers(model, layout)
    removed = [[1, 6, 9] for _ in layers]
    keep = [[e for e in range(12) if e not in (1, 6, 9)] for _ in layers]
    masked = masked_experts(
        model,
        routers=[layer.router for layer in layers],
        num_experts=[12 for _ in layers],
        removed=removed,
    )
    k1 = 6 if family == "deepseek_v3" else 9  # two of its three groups
    policy = RoutingPolicy(k1=k1, k2=k1, ablation=kind)
    for weights, ids in choices(model, layout, policy, around=masked, keep=keep):
        assert not torch.isin(ids, torch.tensor([1, 6, 9])).any()
        assert torch.isfinite(weights).all() and (weights > 0).all()

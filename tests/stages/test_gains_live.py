"""Gains predicted from stats, against what a model's routers and a live policy really do.

Predicted is the ratio of means Σ m_k₁ / Σ m_k₂; measured, of every token, what its gate weights
sum to: the mean of the ratios m_k₁(x) / m_k₂(x). T tokens, E experts, K chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tiny

import moeprune
from moeprune.core.gains import rank_profile
from moeprune.core.policy import RoutingPolicy
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.stages.identify import open_model
from moeprune.stages.policies import policy_applied

TEXTS = ("The quick brown fox jumps over it.", "def area(w, h): return w * h", "1 + 2 = 3", "Größe")
# Gating, whether the router renormalises, and what it multiplies its weights by.
FAMILIES = {
    "qwen3_moe": ("softmax", True, 1.0),
    "olmoe": ("softmax", False, 1.0),
    "gpt_oss": ("softmax", True, 1.0),
    "glm4_moe": ("sigmoid", True, 1.5),
    "deepseek_v3": ("sigmoid", True, 2.5),
}
CHOOSE_BY_PROBABILITY = ("qwen3_moe", "olmoe", "gpt_oss")


def slow_probabilities(logits: list[float], gating: str) -> list[float]:
    """Of one token, by the words of the definition."""
    if gating == "softmax":
        top = max(logits)
        scores = [np.exp(value - top) for value in logits]
    else:
        scores = [1 / (1 + np.exp(-value)) for value in logits]
    total = sum(scores)
    return [score / total for score in scores]


@torch.no_grad()
def watched(model: Any, layout: Any, ids: list[list[int]]) -> list[list[tuple[Any, Any]]]:
    """(L,) logits (E,) and weights (K,) of every token, as the routers return them."""
    seen: list[list[tuple[Any, Any]]] = [[] for _ in layout.layer_ids]
    hooks = []
    for layer in moe_layers(model, layout):

        def keep(_module: Any, _inputs: Any, output: Any, row: int = layer.row) -> None:
            logits_TE, weights_TK = (part.double().tolist() for part in output[:2])
            seen[row] += zip(logits_TE, weights_TK, strict=True)

        hooks.append(layer.router.register_forward_hook(keep))
    for text in ids:
        model(input_ids=torch.tensor([text]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: Any, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Any:
    family = request.param
    path = tiny(family)
    text = tmp_path_factory.mktemp("text") / "text.jsonl"
    text.write_text("\n".join(f'{{"text": "{line}"}}' for line in TEXTS))
    stats = moeprune.calibrate(path, domains={"d": str(text)}, dtype="float32")
    return family, path, stats


def token_ids(path: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    return [tokenizer(text)["input_ids"] for text in TEXTS]


def test_the_profile_is_that_of_the_live_routers(case: Any) -> None:
    family, path, stats = case
    layout = open_model(path).layout
    model = load_causal_lm(path, dtype="float32")
    profile = rank_profile(stats)
    for row, tokens in enumerate(watched(model, layout, token_ids(path))):
        assert len(tokens) == stats.domains[0].num_tokens() > 50
        ranked = [
            sorted(slow_probabilities(logits, FAMILIES[family][0]), reverse=True)
            for logits, _ in tokens
        ]
        for rank in range(layout.num_experts[row]):
            mean = sum(probs[rank] for probs in ranked) / len(ranked)
            assert profile.mean_LE[row, rank] == pytest.approx(mean, rel=1e-5), (row, rank)


@pytest.mark.parametrize(("k1", "k2"), [(2, 3), (2, 6), (3, 6), (1, 99), (3, 2)])
def test_gains_are_what_the_live_policy_does(case: Any, k1: int, k2: int) -> None:
    """Measured lies within the proven slack of predicted, and equals its own definition."""
    family, path, stats = case
    gating, renormalises, scale = FAMILIES[family]
    layout = open_model(path).layout
    model = load_causal_lm(path, dtype="float32")
    profile = rank_profile(stats)
    width = max(layout.num_experts)
    with policy_applied(model, layout, RoutingPolicy(k1=k1, k2=min(k2, width))):
        seen = watched(model, layout, token_ids(path))
    first = seen[0]  # later layers see other hidden states than calibration did
    measured = [sum(weights) / scale for _, weights in first]
    assert layout.renormalises == renormalises
    predicted = float(profile.gain_L(k1, k2)[0])
    ranked = [sorted(slow_probabilities(logits, gating), reverse=True) for logits, _ in first]
    ratios = [sum(probs[:k1]) / sum(probs[:k2]) for probs in ranked]
    slack = float(profile.slack_L(k1, k2)[0])
    assert abs(np.mean(ratios) - predicted) <= slack + 1e-6
    if family in CHOOSE_BY_PROBABILITY:
        assert measured == pytest.approx(ratios, rel=1e-5)
        assert abs(np.mean(measured) - predicted) <= slack + 1e-6
        weights = [sum(probs[:k2]) for probs in ranked]
        assert np.average(measured, weights=weights) == pytest.approx(predicted, rel=1e-5)
    elif k2 < width:
        # The router sorts by biased scores (deepseek_v3: in groups), the profile by probability.
        assert measured != pytest.approx(ratios, rel=1e-3)
        assert all(0 < total < max(1.0, k1 / k2) + 1e-6 or k2 < k1 for total in measured)

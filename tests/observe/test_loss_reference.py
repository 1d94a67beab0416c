"""The sums of a loss against a reference that masks every expert of every token and differentiates.

The reference is itself checked: its gradients against finite differences of the whole model, its
changed blocks against the rule of each family written out, on one token after the other.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from slow_loss import asked, loss_of, slow_changes
from slow_reference import ROUTER, expert_output, moe_blocks, plain_model

from moeprune.observe.layers import moe_layers
from moeprune.observe.loss.alternatives import alternatives
from moeprune.observe.loss.asking import Listener
from moeprune.stages.identify import open_model

# Each with the rule by which its gate weights come about.
RULES = {
    "qwen3_moe": "renormalised softmax",
    "olmoe": "softmax",
    "mixtral": "renormalised softmax",
    "gpt_oss": "softmax of the chosen",
    "deepseek_v3": "sigmoid, bias and groups",
    "glm4_moe": "sigmoid and bias",
}


def double_model(path: Path) -> Any:
    return plain_model(path).double()


def widen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and gates go by way of float32 whatever the weights are: no step is small enough there.

    Not to be called before a model is read, whose files say float32.
    """
    for name in ("float32", "float"):
        monkeypatch.setattr(torch, name, torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def random_document(length: int, *, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def block_input(block: Any, model: Any, ids: list[int]) -> torch.Tensor:
    seen = []
    hook = block.register_forward_pre_hook(lambda _module, given: seen.append(given[0][0]))
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]), use_cache=False)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("family", RULES)
def test_reference_gradient_is_what_a_small_step_of_one_token_changes(
    family: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = double_model(tiny(family))
    widen(monkeypatch)
    ids = random_document(13, seed=1)
    targets = [place in {3, 7, 8, 12} for place in range(13)]
    changes, lost = slow_changes(model, family, ids, targets)
    blocks = moe_blocks(model, family)
    assert lost == pytest.approx(loss_of(model, ids, targets).item(), rel=1e-12)
    step = 1e-5
    for layer, block in blocks.items():
        changed = changes[layer]
        for token in (0, 6, 11):
            expert = int(changed.chosen_TE[token].nonzero()[0])
            delta_H = changed.delta_TEH[token, expert]

            def moved(by: float, block: Any = block, t: int = token, d: Any = delta_H) -> float:
                def hook(_module: Any, _given: Any, output: Any) -> Any:
                    first = output[0] if isinstance(output, tuple) else output
                    first = first.clone()
                    first[0, t] += by * d
                    return (first, *output[1:]) if isinstance(output, tuple) else first

                handle = block.register_forward_hook(hook)
                with torch.no_grad():
                    found = float(loss_of(model, ids, targets))
                handle.remove()
                return found

            slope = (moved(step) - moved(-step)) / (2 * step)
            assert float(changed.cf_TE()[token, expert]) == pytest.approx(slope, rel=1e-4, abs=1e-8)
    # After the last target nothing matters, and a later layer knows nothing of it either.
    assert all((changed.gamma_TH[12] == 0).all() for changed in changes.values())
    assert all((changed.gamma_TH[:12] != 0).any() for changed in changes.values())


def weights_by_hand(router: Any, family: str, x: torch.Tensor, gone: int) -> dict[int, float]:
    """The rule in Python floats: expert -> weight, could ``gone`` not be selected."""
    logits = [float(v) for v in torch.nn.functional.linear(x, router.weight.to(x.dtype))]
    if getattr(router, "bias", None) is not None:
        logits = [logit + float(b) for logit, b in zip(logits, router.bias, strict=True)]
    experts, top_k = range(len(logits)), router.top_k
    if "sigmoid" in RULES[family]:
        score = [1 / (1 + math.exp(-logit)) for logit in logits]
        rank = [s + float(b) for s, b in zip(score, router.e_score_correction_bias, strict=True)]
        rank[gone] = -math.inf
        size = len(logits) // router.num_group
        groups = [range(g * size, (g + 1) * size) for g in range(router.num_group)]
        groups.sort(key=lambda group: -sum(sorted((rank[e] for e in group), reverse=True)[:2]))
        allowed = {e for group in groups[: router.topk_group] for e in group}
        chosen = sorted(allowed, key=lambda e: -rank[e])[:top_k]
        total = sum(score[e] for e in chosen)
        return {e: score[e] / total * router.routed_scaling_factor for e in chosen}
    chosen = sorted((e for e in experts if e != gone), key=lambda e: -logits[e])[:top_k]
    odds = {e: math.exp(logits[e]) for e in chosen}
    # Of a softmax over all experts, what could not be selected is no longer a part.
    whole = sum(math.exp(logits[e]) for e in experts if e != gone)
    total = whole if RULES[family] == "softmax" else sum(odds.values())
    return {e: odd / total for e, odd in odds.items()}


@pytest.mark.parametrize("family", RULES)
def test_reference_blocks_without_an_expert_follow_the_rule_written_out(
    family: str, tiny: Any
) -> None:
    model = double_model(tiny(family))
    if family == "olmoe":
        assert not model.config.norm_topk_prob
    ids = random_document(9, seed=2)
    changes, _ = slow_changes(model, family, ids, [place > 0 for place in range(9)])
    seen = 0
    for layer, block in moe_blocks(model, family).items():
        x_TH = block_input(block, model, ids)
        chosen_TK, weights_TK = asked(block, family, x_TH)
        router = getattr(block, ROUTER.get(family, "gate"))
        for t, x in enumerate(x_TH):
            now = dict(zip(chosen_TK[t].tolist(), weights_TK[t].tolist(), strict=True))
            for e in now:
                then = weights_by_hand(router, family, x, e)
                assert e not in then and len(then) == len(now)
                seen += len(set(then) - set(now)) > 1
                want = sum(
                    (then.get(j, 0.0) - now.get(j, 0.0))
                    * expert_output(family, block.experts, j, x)
                    for j in {*then, *now}
                )
                torch.testing.assert_close(
                    changes[layer].delta_TEH[t, e], want, rtol=1e-5, atol=1e-6
                )
    # A missing expert can cost its group its place, and then several others come in at once.
    assert (seen > 0) == (family == "deepseek_v3")


@pytest.mark.parametrize("family", RULES)
def test_what_the_router_answers_without_an_expert_is_delta_exactly(
    family: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, layout = double_model(tiny(family)), open_model(tiny(family)).layout
    widen(monkeypatch)
    ids = random_document(12, seed=5)
    changes, _ = slow_changes(model, family, ids, [place > 0 for place in range(12)])
    listener, several = Listener(), 0
    blocks = moe_blocks(model, family)
    for layer in moe_layers(model, layout):
        block, changed = blocks[layer.layer], changes[layer.layer]
        x_TH = block_input(block, model, ids)
        with torch.enable_grad(), listener.on(layer):
            chosen_TK, weights_TK = (value.detach() for value in asked(block, family, x_TH))
        found = alternatives(listener.heard[id(layer.router)], chosen_TK, weights_TK)
        several += found.extra_TX.shape[1] > 1
        all_TJ = torch.cat([chosen_TK, found.extra_TX], dim=1)
        for t, x in enumerate(x_TH):
            out_JH = torch.stack(
                [expert_output(family, block.experts, max(int(e), 0), x) for e in all_TJ[t]]
            )
            delta_KH = found.change_TKJ[t] @ out_JH
            want_KH = changed.delta_TEH[t, chosen_TK[t]]
            torch.testing.assert_close(delta_KH, want_KH, rtol=1e-10, atol=1e-13)
    assert (several > 0) == (family == "deepseek_v3")

"""What calibration must find, computed the slow way and without any code of moeprune.

A plain eager forward pass of one document at a time, hooks that keep what each MoE block receives,
then a Python loop over tokens: the model's own router on that one token, each chosen expert's
feed-forward network by hand from its raw weights, and sums in Python floats.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDS = 4
BLOCK = {"granitemoe": "block_sparse_moe", "llama4_text": "feed_forward"}
ROUTER = {"gpt_oss": "router", "granitemoe": "router", "llama4_text": "router"}
SIGMOID = {"deepseek_v3", "glm4_moe", "llama4_text"}


def plain_model(path: Path) -> Any:
    """The checkpoint as anyone would run it, with the library's eager experts and attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def moe_blocks(model: Any, family: str) -> dict[int, Any]:
    """Layer number -> MoE block."""
    name = re.compile(rf"layers\.(\d+)\.{BLOCK.get(family, 'mlp')}$")
    found = {}
    for path, module in model.named_modules():
        match = name.search(path)
        if match and hasattr(module, "experts"):
            found[int(match[1])] = module
    return found


def block_inputs(model: Any, family: str, ids: list[int]) -> dict[int, dict[str, torch.Tensor]]:
    """Layer -> what its block and its experts receive, and what its experts give, for one text."""
    seen: dict[int, dict[str, torch.Tensor]] = {}
    hooks = []
    for layer, block in moe_blocks(model, family).items():
        seen[layer] = {}

        def keep(_module: Any, inputs: Any, *, name: str, layer: int = layer) -> None:
            seen[layer][name] = inputs[0].detach().reshape(-1, inputs[0].shape[-1])

        def result(_module: Any, _inputs: Any, output: Any, *, layer: int = layer) -> None:
            seen[layer]["output"] = output.detach()

        hooks.append(block.register_forward_pre_hook(_bind(keep, "block")))
        hooks.append(block.experts.register_forward_pre_hook(_bind(keep, "experts")))
        hooks.append(block.experts.register_forward_hook(result))
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def _bind(function: Any, name: str) -> Any:
    return lambda module, inputs: function(module, inputs, name=name)


def expert_output(family: str, experts: Any, expert: int, x: torch.Tensor) -> torch.Tensor:
    """One expert's feed-forward network on one token, by hand."""
    if family == "gpt_oss":
        both = x @ experts.gate_up_proj[expert] + experts.gate_up_proj_bias[expert]
        gate = torch.clamp(both[0::2], max=7.0)
        up = torch.clamp(both[1::2], -7.0, 7.0)
        inner = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        return inner @ experts.down_proj[expert] + experts.down_proj_bias[expert]
    if family == "llama4_text":
        both = x @ experts.gate_up_proj[expert]
        half = both.numel() // 2
        return (both[half:] * torch.nn.functional.silu(both[:half])) @ experts.down_proj[expert]
    both = experts.gate_up_proj[expert] @ x
    half = both.numel() // 2
    return experts.down_proj[expert] @ (torch.nn.functional.silu(both[:half]) * both[half:])


def slow_sums(path: Path, family: str, documents: list[list[int]]) -> dict[str, np.ndarray]:
    """Every field of one domain's stats, by the definitions in words."""
    model = plain_model(path)
    blocks = moe_blocks(model, family)
    layers = sorted(blocks)
    experts = blocks[layers[0]].experts.gate_up_proj.shape[0]
    shape = (FOLDS, len(layers), experts)
    sums = {
        name: np.zeros(shape)
        for name in (
            "count",
            "prob_sum",
            "gate_sum",
            "norm_sum",
            "norm_sq_sum",
            "gate_norm_sum",
            "gate_norm_sq_sum",
            "prob_norm_sum",
            "norm_max",
            "rank_prob_sum",
        )
    }
    for name in ("tokens", "entropy_sum", "entropy_sq_sum"):
        sums[name] = np.zeros(shape[:2])
    for number, ids in enumerate(documents):
        seen = block_inputs(model, family, ids)
        for row, layer in enumerate(layers):
            at = (number % FOLDS, row)
            for token in range(len(ids)):
                x = seen[layer]["block"][token]
                added = _add_token(sums, at, family, blocks[layer], x)
                if family != "llama4_text":
                    # The loop above is itself checked: it gives what the experts module gives.
                    torch.testing.assert_close(
                        added, seen[layer]["output"][token], rtol=1e-4, atol=1e-5
                    )
    return sums


@torch.no_grad()
def _add_token(
    sums: dict[str, np.ndarray], at: tuple[int, int], family: str, block: Any, x: torch.Tensor
) -> torch.Tensor:
    router = getattr(block, ROUTER.get(family, "gate"))
    if family == "llama4_text":
        scores, logits = (value[0] for value in router(x[None]))
        chosen = [(int(scores.argmax()), float(scores.max()))]
    else:
        logits, weights, ids = (value[0] for value in router(x[None]))
        chosen = [(int(e), float(g)) for e, g in zip(ids, weights, strict=True)]
    values = [float(value) for value in logits]
    if family in SIGMOID:
        score = [1 / (1 + math.exp(-value)) for value in values]
    else:
        score = [math.exp(value - max(values)) for value in values]
    prob = [value / sum(score) for value in score]
    entropy = -sum(p * math.log2(p) for p in prob if p > 0)
    sums["tokens"][at] += 1
    sums["entropy_sum"][at] += entropy
    sums["entropy_sq_sum"][at] += entropy**2
    sums["prob_sum"][at] += prob
    sums["rank_prob_sum"][at] += sorted(prob, reverse=True)
    added = torch.zeros_like(x)
    for e, g in chosen:
        if family == "llama4_text":  # the score scales what goes in
            f = expert_output(family, block.experts, e, g * x)
            norm = weighted = math.sqrt(sum(float(v) ** 2 for v in f))
        else:
            f = expert_output(family, block.experts, e, x)
            norm = math.sqrt(sum(float(v) ** 2 for v in f))
            weighted = g * norm
            added += g * f
        where = (*at, e)
        sums["count"][where] += 1
        sums["gate_sum"][where] += g
        sums["norm_sum"][where] += norm
        sums["norm_sq_sum"][where] += norm**2
        sums["gate_norm_sum"][where] += weighted
        sums["gate_norm_sq_sum"][where] += weighted**2
        sums["prob_norm_sum"][where] += prob[e] * norm
        sums["norm_max"][where] = max(sums["norm_max"][where], norm)
    return added

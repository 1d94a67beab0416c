"""Two models' selections compared the slow way: routers by hand, counts in plain Python.

Hidden states come from plain forward passes; the choice from router weights, by the words of each
family's paper, expert by expert.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

PREFIX = 257  # of the tiny checkpoints: what stands before a text


def windows(tokenizer: Any, text: str, *, chunk: int) -> list[tuple[list[int], int]]:
    """What is read of a text, and the place of the first token that counts."""
    ids = [PREFIX, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    found = []
    for start in range(1, len(ids), chunk):
        end = min(start + chunk, len(ids))
        first = 0 if start == 1 else max(0, end - 1 - chunk)
        found.append((ids[first : end - 1], start - 1 - first))
    return found


@torch.no_grad()
def chosen(path: Path, texts: Sequence[Sequence[int]]) -> list[list[list[list[int]]]]:
    """Text -> layer -> token -> expert ids, the best first."""
    from transformers import AutoModelForCausalLM, PretrainedConfig

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    config: PretrainedConfig = model.config
    seen: list[tuple[Any, torch.Tensor]] = []
    routers = [
        module
        for name, module in model.named_modules()
        if name.endswith((".mlp.gate", ".mlp.router"))
    ]
    for router in routers:
        router.register_forward_pre_hook(lambda module, args: seen.append((module, args[0])))
    found = []
    for ids in texts:
        seen.clear()
        model(input_ids=torch.tensor([list(ids)]), use_cache=False)
        assert [module for module, _ in seen] == routers
        found.append(
            [
                [_choice(module, row, config) for row in hidden.reshape(len(ids), -1)]
                for module, hidden in seen
            ]
        )
    return found


def _choice(router: Any, row: torch.Tensor, config: Any) -> list[int]:
    logits = row.double() @ router.weight.double().T
    if getattr(router, "bias", None) is not None:  # gpt-oss: top-k of logits, then their softmax
        logits = logits + router.bias.double()
    bias = getattr(router, "e_score_correction_bias", None)
    if bias is None:
        scores = logits.tolist()
        allowed = set(range(len(scores)))
    else:  # DeepSeek-V3: sigmoid and bias; groups by their two best
        scores = (torch.sigmoid(logits) + bias.double()).tolist()
        size = len(scores) // config.n_group
        worth = [
            sum(sorted(scores[group * size : (group + 1) * size])[-2:])
            for group in range(config.n_group)
        ]
        best = sorted(range(config.n_group), key=lambda group: -worth[group])[: config.topk_group]
        allowed = {group * size + place for group in best for place in range(size)}
    order = sorted(allowed, key=lambda expert: (-scores[expert], expert))
    return order[: config.num_experts_per_tok]


def compared(ones: Any, others: Any, firsts: Sequence[int]) -> dict[str, Any]:
    """Shares of all tokens of all layers, and of each layer, counted one by one."""
    layers = len(ones[0])
    each = []
    for layer in range(layers):
        pairs = [
            (mine, theirs)
            for one, other, first in zip(ones, others, firsts, strict=True)
            for mine, theirs in list(zip(one[layer], other[layer], strict=True))[first:]
        ]
        each.append(pairs)
    return {
        **_shares([pair for pairs in each for pair in pairs]),
        "layers": list(map(_shares, each)),
    }


def _shares(pairs: Sequence[tuple[list[int], list[int]]]) -> dict[str, Any]:
    k = min(len(pairs[0][0]), len(pairs[0][1]))
    return {
        "ranks": [sum(a[rank] == b[rank] for a, b in pairs) / len(pairs) for rank in range(k)],
        "same_set": sum({*a[:k]} == {*b[:k]} for a, b in pairs) / len(pairs),
        "overlap": sum(len({*a[:k]} & {*b[:k]}) for a, b in pairs) / len(pairs) / k,
    }


def student(shares: Sequence[float]) -> tuple[float, float]:
    """Student's interval of a mean of documents that are as long as each other."""
    from scipy.stats import t

    mean = math.fsum(shares) / len(shares)
    var = math.fsum((share - mean) ** 2 for share in shares) / (len(shares) - 1)
    half = float(t.ppf(0.975, len(shares) - 1)) * math.sqrt(var / len(shares))
    return mean - half, mean + half

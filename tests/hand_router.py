"""The router of the paper's section 4, by hand in the place of a model's own, and slow perplexity.

"Halving the Activated Experts of a MoE Without Training": w = p[:k₁] / Σ p[:k₂]. For routers of
Qwen3-MoE's class: softmax over all experts, and the top k divided by their sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from moeprune.observe.layers import moe_layers
from moeprune.stages.identify import open_model

PREFIX = 257  # of the tiny checkpoints: what stands before a text


@contextmanager
def routed_by_hand(
    model: Any, path: Path, *, k1: int, k2: int, gain: float | Sequence[float] = 1.0
) -> Iterator[None]:
    """Within the block every router of ``model``, loaded from ``path``, is the hand-written one."""
    layers = moe_layers(model, open_model(path).layout)
    gains = [gain] * len(layers) if isinstance(gain, float) else list(gain)
    for layer, factor in zip(layers, gains, strict=True):

        def forward(hidden: Any, router: Any = layer.router, factor: float = factor) -> Any:
            logits = hidden.reshape(-1, hidden.shape[-1]) @ router.weight.T
            probabilities = torch.softmax(logits.float(), dim=-1)
            ranked, ids = torch.sort(probabilities, dim=-1, descending=True, stable=True)
            weights = factor * ranked[:, :k1] / ranked[:, :k2].sum(-1, keepdim=True)
            return logits, weights.to(logits.dtype), ids[:, :k1]

        layer.router.__dict__["forward"] = forward
    try:
        yield
    finally:
        for layer in layers:
            del layer.router.__dict__["forward"]


@torch.no_grad()
def perplexity(model: Any, tokenizer: Any, texts: Sequence[str], *, chunk: int) -> float:
    """exp(Σ nll / Σ tokens), token by token, each text in windows of ``chunk`` of its own."""
    nll, tokens = 0.0, 0
    for text in texts:
        ids = [PREFIX, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        for start in range(1, len(ids), chunk):
            end = min(start + chunk, len(ids))
            first = 0 if start == 1 else max(0, end - 1 - chunk)
            logits = model(input_ids=torch.tensor([ids[first : end - 1]]), use_cache=False).logits[
                0
            ]
            for place in range(start, end):
                scores = torch.log_softmax(logits[place - 1 - first].double(), dim=-1)
                nll -= float(scores[ids[place]])
                tokens += 1
    return math.exp(nll / tokens)


def loaded(path: Path) -> tuple[Any, Any]:
    """The model by transformers alone, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(path)


def of_task(run: Any, task: str) -> Mapping[str, Any]:
    """The perplexity that a run states."""
    found: Mapping[str, Any] = run.tasks[task]["summary"]["perplexity"]
    return found

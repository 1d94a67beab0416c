"""Plans whose layers keep different numbers of experts, and their masked reference."""

from __future__ import annotations

from pathlib import Path

import torch

from moeprune.core.plan import PrunePlan
from moeprune.stages.identify import open_model

PROMPT = [list(range(3, 27))]


def uneven_plan(model: Path) -> PrunePlan:
    """Of every router group one expert leaves the first layer, two the second, none the third."""
    facts = open_model(model).facts
    groups = facts.num_groups
    keep = []
    order = sorted(set(facts.layer_ids))
    for row, (layer, count) in enumerate(zip(facts.layer_ids, facts.num_experts, strict=True)):
        size = count // groups
        leave = (1, 2, 0)[order.index(layer) % 3]
        leave = min(leave, (count - max(facts.top_k, 2 * groups)) // groups)
        gone = {(2 * row + 1 + step) % size for step in range(leave)}
        keep.append(tuple(e for e in range(count) if e % size not in gone))
    return PrunePlan(
        model_name=facts.name,
        model_fingerprint=facts.fingerprint,
        model_type=facts.model_type,
        top_k=facts.top_k,
        num_groups=groups,
        top_groups=facts.top_groups,
        layer_ids=facts.layer_ids,
        sets=facts.sets,
        num_experts=facts.num_experts,
        keep=tuple(keep),
    )


def masked_logits(model: Path, plan: PrunePlan) -> torch.Tensor:
    """Logits on ``PROMPT`` of the whole model that cannot choose the removed experts."""
    from moeprune.observe.layers import moe_layers
    from moeprune.observe.load import load_causal_lm
    from moeprune.routing.mask import masked_experts

    layout = open_model(model).layout
    full = load_causal_lm(model, dtype="float32", device="cpu")
    layers = moe_layers(full, layout)
    extra = max(rule.extra for rule in layout.tensors.values())
    masked = masked_experts(
        full,
        routers=[layer.router for layer in layers],
        num_experts=[layer.num_experts for layer in layers],
        removed=[plan.removed[layer.row] for layer in layers],
        extra=extra,
    )
    torch.manual_seed(0)  # of what the model draws by itself
    with torch.no_grad(), masked:
        return full(input_ids=torch.tensor(PROMPT), use_cache=False).logits

"""Plans written by hand for tests: the ids that stay, and the model's own facts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moeprune.core.plan import PrunePlan
from moeprune.core.quantisation import LayerSchemes
from moeprune.stages.identify import open_model


def plan_keeping(
    model: Path, keep: Sequence[Sequence[int]], quantize: LayerSchemes | None = None
) -> PrunePlan:
    """A plan for the checkpoint ``model`` that keeps ``keep[row]`` of each MoE layer."""
    facts = open_model(model).facts
    return PrunePlan(
        model_name=facts.name,
        model_fingerprint=facts.fingerprint,
        model_type=facts.model_type,
        top_k=facts.top_k,
        num_groups=facts.num_groups,
        top_groups=facts.top_groups,
        layer_ids=facts.layer_ids,
        sets=facts.sets,
        num_experts=facts.num_experts,
        keep=tuple(tuple(ids) for ids in keep),
        quantize=quantize,
    )

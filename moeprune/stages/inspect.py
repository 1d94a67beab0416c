"""What a model is, and what can be pruned to what: from config.json and headers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moeprune.checkpoint.own_code import own_policy
from moeprune.core.budget import Budget
from moeprune.core.cost import Cost
from moeprune.core.facts import ModelFacts
from moeprune.core.layout import MoeLayout, TensorInfo
from moeprune.core.limits import limits
from moeprune.core.names import names_shared
from moeprune.errors import UsageError
from moeprune.quant import stored_format, values_of
from moeprune.stages.costs import token_cost
from moeprune.stages.exported import folded_into
from moeprune.stages.identify import OpenModel, open_model
from moeprune.stages.stored import not_runnable
from moeprune.stages.streaming import outlined

RATIOS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One uniform pruning that the model allows.

    Attributes:
        ratio: the share of the routed experts that was asked for.
        keep: experts that stay in every layer.
        bytes_after: bytes of all tensors afterwards.
    """

    ratio: float
    keep: int
    bytes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What ``moeprune inspect`` tells.

    Attributes:
        name: Hub id or folder name.
        fingerprint: what stats and plans of this model carry.
        model_type: of the family.
        family: how the family is known: ``"listed"``, ``"inferred"`` from transformers' own
            classes, or ``"by the rule set"`` from names and shapes alone.
        layer_ids: index of each MoE layer.
        expert_sets: of every layer beside its main one; each keeps as many experts as that.
        idle_experts: what a token may choose instead of a routed expert and always stays.
        dense_layers: ids of the layers without routed experts.
        num_experts: routed experts of every MoE layer.
        top_k: experts run per token.
        policy: k₁ and k₂ that an export runs by its own code, or None: those of its config.json.
        folded_gain: what ``export --fold-gain`` wrote in place of k₁ and k₂, or None.
        gating: from router logits to scores; ``"unknown"`` where only the model's own code says it.
        num_groups: router groups, 1 = none.
        top_groups: groups a token may choose from.
        shared_experts: whether layers have experts that every token runs.
        following_layers: next-token-prediction layers with experts; they lose the same ones as the
            last MoE layer.
        tensors: stored tensors.
        parameters: values that the tensors stand for: packed ones unpacked, scales none.
        total_bytes: bytes of all tensors.
        expert_parameters: ``parameters`` in the routed experts.
        experts_bytes: bytes of all routed experts and their router rows.
        expert_bytes: (L,) bytes that leave with one expert of the layer, or of one of its sets.
        dtypes: stored type -> bytes, largest first.
        quant_method: as config.json states it, or None.
        not_runnable: why calibrate and verify --forward refuse its stored format, or None.
        count_keys: keys of config.json that state the expert count.
        observer: how calibration sees the experts.
        min_keep: the fewest experts a pruned layer may keep.
        unit: a pruned layer keeps a multiple of it.
        choices: what uniform pruning at some ratios leaves.
        token: what one token of text activates and reads, beside the native routing's.
    """

    name: str
    fingerprint: str
    model_type: str
    family: str
    layer_ids: tuple[int, ...]
    expert_sets: tuple[str, ...]
    idle_experts: int
    dense_layers: tuple[int, ...]
    num_experts: int
    top_k: int
    policy: Mapping[str, int] | None
    folded_gain: Mapping[str, Any] | None
    gating: str
    num_groups: int
    top_groups: int
    shared_experts: bool
    following_layers: int
    tensors: int
    parameters: int
    total_bytes: int
    expert_parameters: int
    experts_bytes: int
    expert_bytes: tuple[int, ...]
    dtypes: Mapping[str, int]
    quant_method: str | None
    not_runnable: str | None
    count_keys: tuple[str, ...]
    observer: str
    min_keep: int
    unit: int
    choices: tuple[Choice, ...]
    token: Cost

    def to_json(self) -> dict[str, Any]:
        """A JSON object of plain types."""
        return {**asdict(self), "token": self.token.to_json()}


def inspect(model: str | Path, *, revision: str | None = None) -> Inspection:
    """Read what a model is and what can be pruned.

    Of a model on the Hub, headers and routers are read, not its weights.

    Args:
        model: a local folder or a Hub id.
        revision: branch, tag or commit on the Hub.

    Raises:
        CheckpointError: it cannot be read.
        UnsupportedModelError: it is no MoE that moeprune can prune; the message names the reason.
        HubError: the Hub refused.
    """
    with outlined(model, revision=revision) as source:
        return _inspected(open_model(model, revision=revision, source=source, rerouted=True))


def _inspected(opened: OpenModel) -> Inspection:
    layout, facts, tensors = opened.layout, opened.facts, opened.index.tensors
    limit, policy = limits(facts), own_policy(opened.index.config)
    gain = folded_into(opened.index.path)
    experts = {name: tensors[name] for name, at in layout.tensors.items() if at.role == "expert"}
    counted = values_of(stored_format(opened.index.config), tensors)
    return Inspection(
        name=facts.name,
        fingerprint=facts.fingerprint,
        model_type=facts.model_type,
        family=opened.origin,
        layer_ids=tuple(dict.fromkeys(facts.layer_ids)),
        expert_sets=tuple(sorted({name for name in facts.sets if name})),
        idle_experts=facts.idle_experts,
        dense_layers=_dense_layers(tensors, layout),
        num_experts=facts.width,
        top_k=facts.top_k,
        policy=policy.to_json() if policy else None,
        folded_gain=gain.to_json() if gain else None,
        gating=facts.gating,
        num_groups=facts.num_groups,
        top_groups=facts.top_groups,
        shared_experts=any(map(names_shared, tensors)),
        following_layers=len({_layer(name) for name, at in layout.tensors.items() if at.follows}),
        tensors=len(tensors),
        parameters=_values(tensors, counted),
        total_bytes=facts.total_bytes,
        expert_parameters=_values(experts, counted),
        experts_bytes=facts.width * sum(facts.expert_bytes),
        expert_bytes=facts.expert_bytes,
        dtypes=_dtypes(tensors),
        quant_method=layout.quant_method,
        not_runnable=not_runnable(opened.index, layout),
        count_keys=tuple(".".join(path) for path in layout.count_keys),
        observer=layout.observer,
        min_keep=limit.min_keep,
        unit=limit.unit,
        choices=_choices(facts),
        token=token_cost(opened, policy=policy),
    )


def _choices(facts: ModelFacts) -> tuple[Choice, ...]:
    found: dict[int, Choice] = {}
    for ratio in RATIOS:
        try:
            budget = Budget.of(facts, ratio=ratio, keep=None, allocation="uniform")
        except UsageError:  # this model has no such pruning; the next ratio may exist
            continue
        leave = budget.max_remove[0]
        keep = facts.width - leave
        after = facts.total_bytes - leave * sum(facts.expert_bytes)
        found.setdefault(keep, Choice(ratio=ratio, keep=keep, bytes_after=after))
    return tuple(found.values())


def _layer(name: str) -> tuple[str, int] | None:
    """(stack of layers, number in it) of a tensor name; None outside of layers."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part.isascii() and part.isdecimal() and len(part) < 10:
            return ".".join(parts[:index]), int(part)
    return None


def _dense_layers(tensors: Mapping[str, TensorInfo], layout: MoeLayout) -> tuple[int, ...]:
    routed = {_layer(name) for name in layout.tensors}
    stacks = {
        at[0] for at in (_layer(n) for n, rule in layout.tensors.items() if not rule.follows) if at
    }
    every = {at for at in map(_layer, tensors) if at is not None and at[0] in stacks}
    return tuple(sorted(number for _, number in every - routed))


def _values(tensors: Mapping[str, TensorInfo], counted: Mapping[str, int]) -> int:
    return sum(counted.get(name, math.prod(info.shape)) for name, info in tensors.items())


def _dtypes(tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for info in tensors.values():
        sizes[info.dtype] = sizes.get(info.dtype, 0) + info.nbytes
    return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))

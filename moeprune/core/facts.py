"""What stats and plans carry of a model, so that they need neither its files nor its weights.

L MoE layers (dense layers have no row), E routed experts of a layer, K experts run per token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from moeprune.core.rows import Row, rows_of
from moeprune.errors import StatsError

_TEXT_FACTS = frozenset({"name", "fingerprint", "model_type", "gating", "no_per_layer", "no_pad"})
_PER_LAYER_FACTS = frozenset({"layer_ids", "num_experts", "expert_bytes", "sets", "passes"})
_ODD_FACTS = frozenset({"sets", "passes", "idle_experts", "no_per_layer", "no_pad", "native_k2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a plan needs to know of a model, small enough to travel in a stats file.

    Attributes:
        name: Hub id or folder name, for people.
        fingerprint: sha256 over tensor names, dtypes, shapes and the bytes of every router.
        model_type: of the config that states the experts.
        layer_ids: (L,) index of each MoE layer in the checkpoint.
        num_experts: (L,) routed experts of each MoE layer.
        top_k: experts run per token (k₁ of the native model).
        num_groups: router groups (1 = the router is not group-limited); a group is a run of
            consecutive experts.
        top_groups: groups a token may choose from.
        gating: ``"softmax"``, ``"sigmoid"`` or ``"sqrtsoftplus"``: from logits to scores.
        total_bytes: bytes of all tensors.
        expert_bytes: (L,) bytes that leave the checkpoint with one expert of the layer: its
            tensors and its share of the router.
        sets: (L,) expert set of each row where a layer has several, ``""`` for the main one; or ().
            The sets of a layer share one count.
        passes: (L,) how often a forward pass runs the layer; or (): each once.
        idle_experts: what a token may choose instead of a routed expert and always stays.
        no_per_layer: why ``export --per-layer`` refuses this model, or "".
        no_pad: why ``export --pad`` refuses it where its family would allow it, or "".
        native_k2: k₂ of the native model: ``top_k``, or all of a layer where the router does not
            renormalise; 0: an older version wrote this, or its router runs no other number.
    """

    name: str
    fingerprint: str
    model_type: str
    layer_ids: tuple[int, ...]
    num_experts: tuple[int, ...]
    top_k: int
    num_groups: int
    top_groups: int
    gating: str
    total_bytes: int
    expert_bytes: tuple[int, ...]
    sets: tuple[str, ...] = ()
    passes: tuple[int, ...] = ()
    idle_experts: int = 0
    no_per_layer: str = ""
    no_pad: str = ""
    native_k2: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON object of plain types; what only odd models have stands in theirs alone."""
        body = asdict(self)
        return {key: value for key, value in body.items() if value or key not in _ODD_FACTS}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ModelFacts:
        """Rebuild from :meth:`to_json`'s object.

        Raises:
            StatsError: a key is missing or of another type.
        """
        values: dict[str, Any] = {}
        for fact in fields(cls):
            if fact.name in _ODD_FACTS and fact.name not in body:
                continue
            if fact.name not in body:
                raise StatsError(f"model facts lack {fact.name!r}; make the stats again.")
            value = body[fact.name]
            if fact.name in _TEXT_FACTS:
                good = isinstance(value, str)
            elif fact.name in _PER_LAYER_FACTS:
                kind = str if fact.name == "sets" else int
                good = isinstance(value, list | tuple) and all(type(item) is kind for item in value)
                value = tuple(value) if good else value
            else:
                good = type(value) is int
            if not good:
                raise StatsError(f"model facts: {fact.name!r} cannot be {value!r}.")
            values[fact.name] = value
            if any(not 0 <= item < 2**63 for item in _numbers(value)):
                raise StatsError(f"model facts: {fact.name!r} cannot be {value!r}.")
        facts = cls(**values)
        lengths = {len(facts.layer_ids), len(facts.num_experts), len(facts.expert_bytes)}
        lengths |= {len(values) for values in (facts.sets, facts.passes) if values}
        if len(lengths) != 1 or not facts.layer_ids or min(facts.num_experts) < 1:
            raise StatsError("model facts: layer_ids, num_experts and expert_bytes do not agree.")
        if facts.top_k < 1 or facts.num_groups < 1 or facts.top_groups < 1:
            raise StatsError("model facts: top_k, num_groups and top_groups must be positive.")
        if facts.top_k > min(facts.num_experts) or facts.top_groups > facts.num_groups:
            raise StatsError(
                f"model facts: no router runs {facts.top_k} of {min(facts.num_experts)} experts, "
                f"from {facts.top_groups} of {facts.num_groups} groups."
            )
        if facts.passes and min(facts.passes) < 1:
            raise StatsError(f"model facts: 'passes' {facts.passes} must be positive.")
        rows = facts.rows
        if list(rows) != sorted(set(rows)):
            raise StatsError(f"model facts: 'layer_ids' {facts.layer_ids} do not ascend.")
        pruned = sum(map(math.prod, zip(facts.num_experts, facts.expert_bytes, strict=True)))
        if not max(1, pruned) <= facts.total_bytes:
            raise StatsError(
                f"model facts: {pruned} bytes of experts in a model of {facts.total_bytes} bytes."
            )
        return facts

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layer_ids)

    @property
    def rows(self) -> tuple[Row, ...]:
        """(L,) layer and expert set of each row."""
        return rows_of(self.layer_ids, self.sets)

    @property
    def width(self) -> int:
        """E of the widest layer: the last axis of every (L, E) array."""
        return max(self.num_experts)


def _numbers(value: object) -> tuple[int, ...]:
    if isinstance(value, tuple):
        return tuple(item for item in value if isinstance(item, int))
    return (value,) if isinstance(value, int) else ()

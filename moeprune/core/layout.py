"""What moeprune knows of a model: its routed experts, its router, and which tensors hold them.

L MoE layers (dense layers have no row), E routed experts of a layer, K experts run per token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from moeprune.core.rows import Row, rows_of
from moeprune.errors import StatsError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor as its header states it.

    Attributes:
        dtype: safetensors spelling, e.g. ``"BF16"``.
        shape: as stored.
        nbytes: size of its data on disk.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTensor:
    """How one stored tensor depends on the routed experts of one MoE layer.

    Attributes:
        row: the MoE layer, as an index into ``MoeLayout.layer_ids``.
        role: ``"expert"``, ``"router"``, or ``"table"``: its values are ids of experts.
        expert: the expert whose number stands in the tensor's name, or None. From E on these are
            idle experts, which stay behind the last kept one.
        axis: the axis on which all experts lie, or None; of a table neither is set, of all others
            exactly one.
        shift: expert sets that the module stores before this one; the number in the name counts on
            over them: it is ``expert`` + ``shift`` · E.
        block: consecutive positions on ``axis`` that one expert owns.
        extra: positions after the last expert's that always stay (zero or shared experts).
        follows: True for layers that calibration never runs (next-token-prediction layers); they
            take the expert ids of ``row``, the last MoE layer.
    """

    row: int
    role: str
    expert: int | None = None
    axis: int | None = None
    block: int = 1
    extra: int = 0
    shift: int = 0
    follows: bool = False

    def __post_init__(self) -> None:
        assert (self.expert is None) + (self.axis is None) == 1 + (self.role == "table")
        assert self.role in ("expert", "router", "table")


_TEXT_FACTS = frozenset({"name", "fingerprint", "model_type", "gating"})
_PER_LAYER_FACTS = frozenset({"layer_ids", "num_experts", "expert_bytes", "sets", "passes"})
_ODD_FACTS = frozenset({"sets", "passes", "idle_experts"})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeLayout:
    """Where a checkpoint keeps its routed experts, and what must change when some leave.

    Attributes:
        model_type: of the config that states the experts; the name of the family.
        layer_ids: (L,) index of each MoE layer in the checkpoint.
        num_experts: (L,) routed experts of each MoE layer.
        top_k: experts run per token.
        num_groups: router groups, 1 where the router is not group-limited.
        top_groups: groups a token may choose from.
        gating: ``"softmax"``, ``"sigmoid"`` or ``"sqrtsoftplus"``.
        gate_scale: factor that every block applies to what its routed experts add together, after
            the router's weights; a gate weight includes it.
        expert_bytes: (L,) bytes that leave with one expert of the layer.
        count_keys: paths in config.json of every key that states the expert count.
        tensors: stored name -> how it depends on the experts; names not in it never change.
        experts_module: name of the experts module in memory after ``layers.<i>.``.
        router_module: name of the router module in memory after ``layers.<i>.``.
        observer: how calibration sees the experts: ``"function"`` (transformers' registry of
            experts functions) or the name of another way.
        quant_method: as ``quantization_config`` states it, or None.
        sets, passes, idle_experts: see :class:`ModelFacts`.
        set_modules: set other than the main one -> experts module and router module in memory.
    """

    model_type: str
    layer_ids: tuple[int, ...]
    num_experts: tuple[int, ...]
    top_k: int
    num_groups: int
    top_groups: int
    gating: str
    expert_bytes: tuple[int, ...]
    count_keys: tuple[tuple[str, ...], ...]
    tensors: Mapping[str, ExpertTensor]
    experts_module: str
    router_module: str
    observer: str
    quant_method: str | None
    gate_scale: float = 1.0
    sets: tuple[str, ...] = ()
    set_modules: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    passes: tuple[int, ...] = ()
    idle_experts: int = 0

    @property
    def extra_rows(self) -> int:
        """Outputs of every router after those of its experts."""
        return max((rule.extra for rule in self.tensors.values()), default=0)

    @property
    def rows(self) -> tuple[Row, ...]:
        """(L,) layer and expert set of each row."""
        return rows_of(self.layer_ids, self.sets)

    def facts(self, *, name: str, fingerprint: str, total_bytes: int) -> ModelFacts:
        """The part of the layout that travels with stats and plans."""
        return ModelFacts(
            name=name,
            fingerprint=fingerprint,
            model_type=self.model_type,
            layer_ids=self.layer_ids,
            num_experts=self.num_experts,
            top_k=self.top_k,
            num_groups=self.num_groups,
            top_groups=self.top_groups,
            gating=self.gating,
            total_bytes=total_bytes,
            expert_bytes=self.expert_bytes,
            sets=self.sets,
            passes=self.passes,
            idle_experts=self.idle_experts,
        )

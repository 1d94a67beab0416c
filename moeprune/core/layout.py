"""What moeprune knows of a model: its routed experts, its router, and which tensors hold them.

L MoE layers (dense layers have no row), E routed experts of a layer, K experts run per token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moeprune.core.facts import ModelFacts
from moeprune.core.policy import RoutingPolicy
from moeprune.core.rows import Row, rows_of
from moeprune.core.split import Split


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
        renormalises: whether the router divides the weights of a token by their sum; if not, they
            are the scores themselves.
        fixed_routing: why no other number of experts can run than the native one, or "".
        least_top_k: the fewest experts a token that transformers' experts run.
        expert_bytes: (L,) bytes that leave with one expert of the layer.
        count_keys: paths in config.json of every key that states the expert count.
        top_k_keys: paths in config.json of every key that states ``top_k``; where none does, of
            the one that a loader reads.
        routed_output: name in the block of the linear map that takes the sum of the experts'
            outputs, of a family whose experts normalise what they give; or "".
        tensors: stored name -> how it depends on the experts; names not in it never change.
        splits: stored name of the weights of all experts of a layer -> how it falls apart
            into maps of single experts; one that is in ``tensors`` and not here cannot be cut so.
        merged: how the experts module in memory holds all experts, of a family of which
            transformers reads no single ones (see ``architectures.merged_tensors``); or "".
        experts_module: name of the experts module in memory after ``layers.<i>.``.
        router_module: name of the router module in memory after ``layers.<i>.``.
        observer: how calibration sees the experts: ``"function"`` (transformers' registry of
            experts functions) or the name of another way.
        quant_method: as ``quantization_config`` states it, or None.
        sets, passes, idle_experts: see :class:`ModelFacts`.
        set_modules: set other than the main one -> experts module and router module in memory.
        stacks: parts of the model in memory that each run all MoE layers, with the same experts; or
            (): one stack.
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
    renormalises: bool = True
    fixed_routing: str = ""
    least_top_k: int = 1
    top_k_keys: tuple[tuple[str, ...], ...] = ()
    routed_output: str = ""
    sets: tuple[str, ...] = ()
    set_modules: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    stacks: tuple[str, ...] = ()
    passes: tuple[int, ...] = ()
    idle_experts: int = 0
    splits: Mapping[str, Split] = field(default_factory=dict)
    merged: str = ""

    @property
    def extra_rows(self) -> int:
        """Outputs of every router after those of its experts."""
        return max((rule.extra for rule in self.tensors.values()), default=0)

    @property
    def rows(self) -> tuple[Row, ...]:
        """(L,) layer and expert set of each row."""
        return rows_of(self.layer_ids, self.sets)

    @property
    def native_policy(self) -> RoutingPolicy:
        """What the model does by itself: (k, k), or (k, E) where it does not renormalise."""
        k2 = self.top_k if self.renormalises else max(self.num_experts)
        return RoutingPolicy(k1=self.top_k, k2=k2)

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
            native_k2=0 if self.fixed_routing else self.native_policy.k2,
        )

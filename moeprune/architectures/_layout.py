"""One rule set for all families: config.json + tensor headers -> :class:`MoeLayout`.

MoE layers are the layers that own expert tensors, whatever rule config.json uses to place them.
A model is laid out whole or refused: a tensor that looks like an expert's or a router's and has no
place is an error, never a guess.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moeprune.architectures._config import (
    StatedExperts,
    extra_rows_of,
    groups_of,
    passes_of,
    quant_method_of,
    stated_experts,
)
from moeprune.architectures._experts import ExpertSet, expert_sets, share
from moeprune.architectures._families import Family, load_family
from moeprune.architectures._gating import gate_scale_of, gating_of, renormalises_of
from moeprune.architectures._leftover import refuse_leftovers
from moeprune.architectures._match import ExpertMatch, LayerPath, is_routed, layer_path
from moeprune.architectures._router import router_tensors
from moeprune.architectures._splits import splits_of
from moeprune.architectures._top_k import top_k_keys_of, top_k_of
from moeprune.core.layout import ExpertTensor, MoeLayout, TensorInfo
from moeprune.errors import UnsupportedModelError


def layout_of(
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    *,
    family: Family | None = None,
) -> MoeLayout:
    """Where a checkpoint keeps its routed experts.

    Args:
        config: config.json, parsed.
        tensors: stored name -> dtype, shape and bytes, from the headers of the shards.
        family: of the model; None: the one whose file config.json names.

    Raises:
        UnknownFamilyError: no family file has a name that config.json states.
        UnsupportedModelError: not a Mixture-of-Experts, or experts stored in a way that cannot be
            cut; the message names the reason.
        CheckpointError: config.json and tensors contradict each other.
    """
    stated = stated_experts(config)
    _refuse_dense(config, tensors, stated)
    assert stated is not None
    if family is None:
        family = load_family(stated.level.get("model_type"), config.get("model_type"))
    extra = extra_rows_of(stated, family)
    sets = expert_sets(
        tensors,
        num_experts=stated.count,
        extra=extra if family.idle else 0,
        stored_sets=family.stored_sets,
    )
    if not sets:
        refuse_leftovers(tensors, {}, {}, num_experts=stated.count)
        raise _no_experts(config)
    owners = _owners(sets, family, num_layers=stated.num_layers)
    main = [place for place in owners if not place[0].follows]
    if not main:
        raise UnsupportedModelError(
            f"only next-token-prediction layers have experts ({sets[0].container}); the "
            f"{stated.num_layers} layers that config.json states have none."
        )
    by_layer = _by_layer(tensors, {path for path, _ in owners})
    placed: dict[str, ExpertTensor] = {}
    expert_bytes = [0] * len(main)
    for (path, expert_set), owner in owners.items():
        row = _row_of(path, expert_set, main)
        routers = router_tensors(
            by_layer[path],
            container=owner.container,
            layer_prefix=path.prefix,
            row=row,
            follows=path.follows,
            num_experts=stated.count,
            extra=extra,
            family=family,
        )
        expert_bytes[row] += owner.expert_bytes
        for name, found in owner.matches.items():
            placed[name] = _placed(found, row, path, num_experts=stated.count, family=family)
        for name, tensor in routers.items():
            if tensor.role == "router":
                shares = stated.count + tensor.extra
                expert_bytes[row] += share(name, tensors[name], num_shares=shares)
            placed[name] = tensor
    containers = {owner.container: path for (path, _), owner in owners.items()}
    refuse_leftovers(tensors, placed, containers, num_experts=stated.count)
    num_groups, top_groups = groups_of(stated, family)
    gating = gating_of(stated, family)
    renormalises, unclear = renormalises_of(stated, family, gating=gating)
    layer_ids = tuple(path.number for path, _ in main)
    return MoeLayout(
        model_type=family.model_type,
        layer_ids=layer_ids,
        num_experts=(stated.count,) * len(main),
        top_k=top_k_of(stated, family),
        num_groups=num_groups,
        top_groups=top_groups,
        gating=gating,
        renormalises=renormalises,
        fixed_routing=family.fixed_routing or unclear,
        least_top_k=family.least_top_k,
        gate_scale=gate_scale_of(stated, family),
        expert_bytes=tuple(expert_bytes),
        count_keys=stated.count_keys,
        top_k_keys=top_k_keys_of(config, stated, family),
        routed_output=family.routed_output,
        tensors={name: placed[name] for name in tensors if name in placed},
        splits=splits_of(placed, tensors, family),
        merged=family.merged,
        experts_module=family.experts,
        router_module=family.router,
        observer=family.observer,
        quant_method=quant_method_of(config, stated),
        sets=tuple(name for _, name in main) if family.sets else (),
        set_modules=family.sets,
        stacks=family.stacks,
        passes=passes_of(stated, family, layer_ids),
        idle_experts=extra if family.idle else 0,
    )


def _refuse_dense(
    config: Mapping[str, Any], tensors: Iterable[str], stated: StatedExperts | None
) -> None:
    named = [name for name in tensors if is_routed(name) and "experts" in name.split(".")]
    if stated is None and named:
        raise UnsupportedModelError(
            f"{named[0]!r} looks like an expert, but config.json states no expert count "
            f"(model_type {config.get('model_type')}): add it, for instance as num_experts."
        )
    if stated is None or stated.count == 0:
        raise _no_experts(config)


def _no_experts(config: Mapping[str, Any]) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the model has no routed experts (model_type {config.get('model_type')}): nothing to "
        "prune. Name a Mixture-of-Experts checkpoint."
    )


Place = tuple[LayerPath, str]


def _owners(
    sets: Iterable[ExpertSet], family: Family, *, num_layers: int | None
) -> dict[Place, ExpertSet]:
    """Layer and name of the set -> its experts: the main model's by number, then what follows."""
    found: dict[Place, ExpertSet] = {}
    for owner in sets:
        path = layer_path(owner.container, num_layers=num_layers)
        if path is None:
            raise UnsupportedModelError(
                f"experts {owner.container!r} belong to no numbered layer; moeprune cannot place "
                "them."
            )
        inner = owner.container.removeprefix(f"{path.prefix}.")
        expert_set = next((name for name, of in family.sets.items() if of[0] == inner), "")
        for other, other_set in found:
            same = path.follows == other.follows and path.number == other.number
            if same and expert_set == other_set:
                if path.follows and path.prefix != other.prefix:
                    continue  # two stacks of next-token-prediction layers, each from 0
                raise UnsupportedModelError(
                    f"layer {path.number} has two expert sets, "
                    f"{found[other, other_set].container} and {owner.container}; moeprune prunes "
                    "models with one a layer."
                )
        found[path, expert_set] = owner
    return dict(sorted(found.items(), key=lambda item: item[0]))


def _row_of(path: LayerPath, expert_set: str, main: Sequence[Place]) -> int:
    """Index into ``main``; layers that follow take the row of the last layer's same set."""
    if not path.follows:
        return main.index((path, expert_set))
    return max(row for row, (_, name) in enumerate(main) if name == expert_set)


def _placed(
    found: ExpertMatch, row: int, path: LayerPath, *, num_experts: int, family: Family
) -> ExpertTensor:
    expert, shift = found.expert, 0
    if expert is not None and expert < num_experts * family.stored_sets:
        shift, expert = divmod(expert, num_experts)
    return ExpertTensor(
        row=row,
        role="expert",
        expert=expert,
        axis=found.axis,
        block=found.block,
        shift=shift,
        follows=path.follows,
    )


def _by_layer(
    tensors: Mapping[str, TensorInfo], layers: Iterable[LayerPath]
) -> dict[LayerPath, dict[str, TensorInfo]]:
    prefixes = {path.prefix: path for path in layers}
    split: dict[LayerPath, dict[str, TensorInfo]] = defaultdict(dict)
    for name, info in tensors.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            path = prefixes.get(".".join(parts[:end]))
            if path is not None:
                split[path][name] = info
                break
    return split

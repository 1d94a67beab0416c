"""Models whose family has no file: described from transformers' classes, or by the rule set alone.

transformers knows the model type: the family is inferred, and what it says must agree with the
tensors on disk. The checkpoint brings its own code: names and shapes of its tensors are all that is
read, and no line of that code runs; how its router makes scores stays open until a user states it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from moeprune.architectures import (
    GROUP_KEYS,
    TOP_GROUP_KEYS,
    TOP_K_KEYS,
    Family,
    StatedExperts,
    layout_of,
    stated_experts,
)
from moeprune.core.layout import MoeLayout, TensorInfo
from moeprune.errors import CheckpointError, UnknownFamilyError, UnsupportedModelError, UsageError
from moeprune.plugins import known

if TYPE_CHECKING:
    from moeprune.observe.built import LayerShapes
    from moeprune.observe.infer import InferredFamily

Config = Mapping[str, Any]
Tensors = Mapping[str, TensorInfo]

LISTED = "listed"
INFERRED = "inferred"
RULE_SET = "by the rule set"

UNKNOWN = "unknown"
GATINGS = ("softmax", "sigmoid", "sqrtsoftplus")


def lay_out(
    config: Config, tensors: Tensors, *, gating: str | None = None
) -> tuple[MoeLayout, str]:
    """The layout of a checkpoint, and how its family is known.

    Args:
        config: config.json, parsed.
        tensors: stored name -> dtype, shape and bytes.
        gating: from router logits to scores, for a model that is known by the rule set alone.

    Returns:
        The layout; ``LISTED``, ``INFERRED`` or ``RULE_SET``. By the rule set alone and without
        ``gating``, the layout's gating is ``UNKNOWN``.

    Raises:
        CheckpointError: config.json and tensors contradict each other.
        UnsupportedModelError: it is no MoE that moeprune can prune.
        UsageError: ``gating`` is none, or is given for a family that is known.
    """
    if gating is not None:
        known(gating, GATINGS, kind="gating")
    try:
        layout, origin = layout_of(config, tensors), LISTED
    except UnknownFamilyError as unknown:
        layout, origin = _unlisted(config, tensors, unknown, gating)
    if gating is not None and origin != RULE_SET:
        raise UsageError(
            f"--gating {gating} is for models that bring their own code; the router of family "
            f"{layout.model_type} is known ({layout.gating}). Leave --gating out."
        )
    return layout, origin


def _unlisted(
    config: Config, tensors: Tensors, unknown: UnknownFamilyError, gating: str | None
) -> tuple[MoeLayout, str]:
    from moeprune.observe.built import known_to_transformers

    stated = stated_experts(config)
    assert stated is not None, "a family was asked for"
    inferable = known_to_transformers(config.get("model_type"))
    if not inferable and not own_code(config):
        raise unknown
    if not inferable:
        return _by_rule_set(config, tensors, stated, gating), RULE_SET
    if stated.num_layers is not None and stated.num_layers > len(tensors):
        raise CheckpointError(
            f"config.json states {stated.num_layers} layers, but the files hold {len(tensors)} "
            "tensors. Correct config.json, or download the checkpoint again."
        )
    return _inferred(config, tensors, stated), INFERRED


def own_code(config: Config) -> bool:
    """Whether the checkpoint brings Python code for its model."""
    auto_map = config.get("auto_map")
    return isinstance(auto_map, Mapping) and any(
        str(name).startswith("AutoModel") for name in auto_map
    )


def _model_type(config: Config, stated: StatedExperts) -> str:
    own = stated.level.get("model_type")
    return str(own if isinstance(own, str) and own else config["model_type"])


def _inferred(config: Config, tensors: Tensors, stated: StatedExperts) -> MoeLayout:
    from moeprune.observe.infer import ConfigKeys, infer_family

    # First by the rule set: a checkpoint that is not whole is refused before any model is built.
    model_type = _model_type(config, stated)
    nobodys = _nobodys(model_type, defaults={TOP_K_KEYS[0]: 1})
    try:
        plain = layout_of(config, tensors, family=nobodys)
    except UnsupportedModelError as problem:
        raise UnsupportedModelError(
            f"model_type {model_type!r} is not in the list of families, and cannot be inferred: "
            f"{problem} Add a family file (docs/extend.md)."
        ) from problem
    keys = ConfigKeys(
        count=stated.count_keys,
        top_k=TOP_K_KEYS,
        groups=GROUP_KEYS,
        top_groups=TOP_GROUP_KEYS,
    )
    found = infer_family(config, keys=keys, agree=partial(_check_agreement, tensors, plain))
    family = family_of(found, model_type=model_type)
    return layout_of(config, tensors, family=family)


def family_of(found: InferredFamily, *, model_type: str) -> Family:
    """What was inferred, as a family file says it."""
    return Family(
        model_type=model_type,
        gating=found.gating,
        renormalises=found.renormalises or (),
        experts=found.experts,
        router=found.router,
        observer=found.observer,
        groups=found.groups,
        scale=found.scale,
        defaults=found.defaults,
    )


def _check_agreement(
    tensors: Tensors, layout: MoeLayout, layers: Mapping[int, LayerShapes]
) -> None:
    """The tensors on disk that depend on the experts are those in memory.

    Raises:
        UnsupportedModelError: they are not; the message names the layer.
    """
    if layout.layer_ids != tuple(layers):
        raise UnsupportedModelError(
            f"its files have experts in layers {list(layout.layer_ids)}, transformers in "
            f"{list(layers)}. Add a family file (docs/extend.md)."
        )
    routers: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    values: Counter[int] = Counter()
    for name, rule in layout.tensors.items():
        shape = tensors[name].shape
        if rule.follows:
            continue
        if rule.role == "expert":
            values[rule.row] += math.prod(shape)
        else:
            routers[rule.row][tuple(sorted(shape))] += 1
    for row, (layer, memory) in enumerate(layers.items()):
        same = routers[row] == Counter(tuple(sorted(shape)) for shape in memory.routers)
        # A packed format stores other numbers than it means.
        if not same or (layout.quant_method is None and values[row] != memory.expert_values):
            raise UnsupportedModelError(
                f"what layer {layer} stores of experts and router is not what transformers makes "
                "of it. Add a family file (docs/extend.md)."
            )


def _by_rule_set(
    config: Config, tensors: Tensors, stated: StatedExperts, gating: str | None
) -> MoeLayout:
    """What names and shapes say; in its own code, modules have the names of their tensors."""
    # Where config.json speaks of groups, all keep the same number: right with and without.
    family = _nobodys(_model_type(config, stated), groups=True)
    layout = layout_of(config, tensors, family=family)
    experts, router = _module_names(layout)
    return replace(
        layout,
        gating=UNKNOWN if gating is None else gating,
        experts_module=experts,
        router_module=router,
    )


def _module_names(layout: MoeLayout) -> tuple[str, str]:
    """Names of the experts and the router module after the layer's number."""
    name = next(
        n for n, rule in layout.tensors.items() if rule.role == "expert" and not rule.follows
    )
    parts = _inside_layer(name, layout).split(".")
    experts = ".".join(parts[: parts.index("experts") + 1]) if "experts" in parts else parts[0]
    routers = [
        _inside_layer(n, layout)
        for n, rule in layout.tensors.items()
        if rule.role == "router" and not rule.follows and n.endswith(".weight")
    ]
    return experts, routers[0].removesuffix(".weight") if routers else "gate"


def _inside_layer(name: str, layout: MoeLayout) -> str:
    number = str(layout.layer_ids[layout.tensors[name].row])
    return name.partition(f".{number}.")[2]


def _nobodys(model_type: str, **known: Any) -> Family:
    """A family of which nothing is known; what it says of modules and gating is to be replaced."""
    return Family(
        model_type=model_type,
        gating=GATINGS[0],
        experts="experts",
        router="gate",
        observer="function",
        **known,
    )

"""The model code that a folder carries, and the block in config.json that it reads.

Layers with different numbers of experts, and k₁ and k₂ of the routers: no loader knows either. The
folder carries one file, which transformers runs with ``trust_remote_code=True``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeprune.checkpoint.composing import MODELING_FILE, PARTS, is_modeling_text, modeling_text
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.layout import MoeLayout
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import CheckpointError, UnsupportedModelError

__all__ = [
    "MODELING_FILE",
    "PARTS",
    "brings_code",
    "check_plain_code",
    "has_own_counts",
    "is_own_code",
    "modeling_text",
    "own_code_changes",
    "own_merged",
    "own_policy",
]

BLOCK = "moeprune"
FORMAT = 1
_AUTO_MAP = "auto_map"
# transformers refuses an implementation that it does not know, and says this. Without the code it
# would leave the experts random, with a line in its report.
_IMPLEMENTATION = "experts_implementation"
NOT_ALONE = "of single experts: load with trust_remote_code=True"
# Other runtimes choose their own model by this. The GPT-OSS and Granite-MoE of vLLM pass over the
# names of single experts, check no weights of a quantised model, and would compute with whatever
# memory held.
_ARCHITECTURES = "architectures"
_CLASSES = {
    "AutoModel": "MoePruneModel",
    "AutoModelForCausalLM": "MoePruneForCausalLM",
}
_WRAPPER_CLASSES = {
    "AutoModelForImageTextToText": "MoePruneForConditionalGeneration",
    "AutoModelForMultimodalLM": "MoePruneForConditionalGeneration",
}


def brings_code(config: Mapping[str, Any]) -> list[str]:
    """Names in ``auto_map`` of the model's own code, beside a tokenizer's."""
    return [name for name in _auto_map(config) if not name.startswith("AutoTokenizer")]


def own_merged(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What an export's own code merges single experts into, if it does that and nothing else."""
    block = config.get(BLOCK)
    if not isinstance(block, Mapping) or set(block) != {"format", "merged"}:
        return None
    merged = block["merged"]
    return merged if isinstance(merged, Mapping) else None


def check_plain_code(config: Mapping[str, Any], *, option: str) -> None:
    """Check that the model has no code of its own, which ours would replace.

    Args:
        config: config.json of the source.
        option: what asks for our code, for the message.

    Raises:
        UnsupportedModelError: it has.
    """
    own = brings_code(config)
    if own:
        raise UnsupportedModelError(
            f"{option} needs a family that transformers knows; this model brings code of its "
            f"own ({own[0]} in auto_map), which moeprune cannot extend."
        )


def own_code_changes(
    config: Mapping[str, Any],
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
    *,
    counts: bool,
    policy: RoutingPolicy | None,
    merged: Mapping[str, Any] | None = None,
) -> dict[tuple[str, ...], Any]:
    """The keys of config.json that the code needs: path -> value.

    Args:
        config: config.json of the source.
        layout: of the source.
        keep: L sequences of the ids that stay.
        counts: whether each layer states its own number of experts.
        policy: k₁ and k₂; None: the model's own.
        merged: what the tensors of all experts in memory are made of, see
            :func:`moeprune.architectures.merged_tensors`; None: transformers knows.

    The block is left out where neither is: the code then is there for its parts alone.
    """
    block: dict[str, Any] = {"format": FORMAT}
    if counts:
        each: list[int | None] = [None] * (layout.layer_ids[-1] + 1)
        for layer, ids in zip(layout.layer_ids, keep, strict=True):
            each[layer] = len(ids)
        block["experts_per_layer"] = each
    if policy is not None:
        block |= {
            "k1": policy.k1,
            "k2": min(policy.k2, max(map(len, keep))),
            "renormalises": layout.renormalises,
            "routers": _routers(layout),
        }
    if merged is not None:
        block["merged"] = merged
    wrapped = any(path[:-1] for path in layout.count_keys)
    classes = {**_CLASSES, **(_WRAPPER_CLASSES if wrapped else {})}
    stem = MODELING_FILE.removesuffix(".py")
    ours = {name: f"{stem}.{class_name}" for name, class_name in classes.items()}
    stated: dict[tuple[str, ...], Any] = {(BLOCK,): block} if len(block) > 1 else {}
    if merged is not None:
        stated[_IMPLEMENTATION,] = NOT_ALONE
        stated[_ARCHITECTURES,] = [list(classes.values())[-1]]
    return {**stated, (_AUTO_MAP,): {**_auto_map(config), **ours}}


def has_own_counts(config: Mapping[str, Any]) -> bool:
    """Whether config.json gives every layer its own count, as :func:`own_code_changes` does."""
    block = config.get(BLOCK)
    return isinstance(block, Mapping) and "experts_per_layer" in block


def own_policy(config: Mapping[str, Any]) -> RoutingPolicy | None:
    """k₁ and k₂ of a folder whose code reroutes; None: it has the model's own.

    Raises:
        CheckpointError: the block is malformed.
    """
    block = config.get(BLOCK)
    if not isinstance(block, Mapping) or not {"k1", "k2"} & set(block):
        return None
    stated = [block.get("k1"), block.get("k2")]
    if block.get("format") != FORMAT or not all(type(k) is int and k > 0 for k in stated):
        raise CheckpointError(
            f"config.json: moeprune of format {block.get('format')!r} states k1 = {stated[0]!r} "
            f"and k2 = {stated[1]!r}, which this moeprune does not know. Export again, or update "
            "moeprune."
        )
    return RoutingPolicy(k1=block["k1"], k2=block["k2"])


def is_own_code(index: CheckpointIndex) -> bool:
    """Whether everything that transformers would run of this folder is the file that we write."""
    stem = f"{MODELING_FILE.removesuffix('.py')}."
    classes = [
        value
        for name, value in _auto_map(index.config).items()
        if not name.startswith("AutoTokenizer")
    ]
    if not classes or not all(isinstance(name, str) and name.startswith(stem) for name in classes):
        return False
    path = index.path / MODELING_FILE
    return path.is_file() and is_modeling_text(path.read_bytes())


def _routers(layout: MoeLayout) -> dict[str, list[int]]:
    """Module in memory, after ``layers.<i>.`` -> the layers that have it."""
    found: dict[str, list[int]] = {}
    for layer, expert_set in layout.rows:
        name = layout.set_modules[expert_set][1] if expert_set else layout.router_module
        found.setdefault(name, []).append(layer)
    return found


def _auto_map(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get(_AUTO_MAP)
    return found if isinstance(found, Mapping) else {}

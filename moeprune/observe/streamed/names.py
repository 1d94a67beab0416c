"""Which stored tensors become which of the model's, by transformers' own rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moeprune.observe.load import check_complete
from moeprune.observe.streamed.skeleton import Skeleton
from moeprune.observe.streamed.stored import Stored


@dataclass(frozen=True, slots=True)
class Group:
    """Stored tensors that become one or more of the model's.

    Attributes:
        keys: of the stored ones.
        targets: of the model's.
        alone: one stored tensor is one of the model's, as it is.
    """

    keys: tuple[str, ...]
    targets: tuple[str, ...]
    alone: bool


def grouped(built: Skeleton, stored: Mapping[str, Stored]) -> tuple[Group, ...]:
    """Put together what is converted together.

    Raises:
        CheckpointError: the model has no place for an expert tensor or a scale.
    """
    from transformers import core_model_loading as loading

    state = built.root.state_dict(keep_vars=True)
    mapping = built.load_config.weight_mapping or []
    converters = [item for item in mapping if isinstance(item, loading.WeightConverter)]
    renamings = [item for item in mapping if isinstance(item, loading.WeightRenaming)]
    by_pattern = {key: item for item in converters for key in item.source_patterns}
    prefix = built.root.base_model_prefix
    keys: dict[str, list[str]] = defaultdict(list)
    targets: dict[str, tuple[str, ...]] = {}
    converted: set[str] = set()
    unexpected: set[str] = set()
    for key in sorted(stored):
        name, pattern = loading.rename_source_key(key, renamings, converters, prefix, state)
        if name not in state and key in state:
            name, pattern = loading.rename_source_key(key, [], [], prefix, state)
        if name not in state:
            unexpected.add(name)
            continue
        keys[name].append(key)
        if pattern is not None:
            converted.add(name)
        made = by_pattern[pattern].target_patterns if pattern is not None else [name]
        targets[name] = (name, *(name.replace(made[0], other) for other in made[1:]))
    report = {"missing_keys": (), "mismatched_keys": (), "unexpected_keys": unexpected}
    check_complete(built.path, built.root, report)
    return tuple(
        Group(tuple(own), targets[name], alone=len(own) == 1 and name not in converted)
        for name, own in keys.items()
    )


def ties(root: Any) -> dict[str, tuple[str, ...]]:
    """Name -> other names of the same tensor, as the model's class and its modules state them."""
    same: dict[Any, set[str]] = defaultdict(set)
    for path, module in root.named_modules(remove_duplicate=False):
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                same[id(module), name].add(f"{path}.{name}" if path else name)
                same[id(tensor)].add(f"{path}.{name}" if path else name)
    groups = [names for names in same.values() if len(names) > 1]
    by_source: dict[str, set[str]] = defaultdict(set)
    for target, source in (getattr(root, "all_tied_weights_keys", None) or {}).items():
        by_source[source] |= {target, source}
    tied: dict[str, set[str]] = defaultdict(set)
    for names in (*groups, *by_source.values()):
        for name in names:
            tied[name] |= names - {name}
    return {name: tuple(sorted(others)) for name, others in tied.items()}

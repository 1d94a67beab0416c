"""The routed experts of every layer, found in tensor names and checked to be whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import moeprune.architectures as architectures
from moeprune import plugins
from moeprune.architectures._match import ExpertMatch, is_routed
from moeprune.core.layout import TensorInfo
from moeprune.errors import CheckpointError, UnsupportedModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSet:
    """The experts that one module owns.

    Attributes:
        container: path of the module.
        matches: stored name -> how it holds experts.
        expert_bytes: bytes of one expert. Of quantised ones the smallest's: a stored format may
            give each a few bytes more or less (numbers spelled as text), and a plan must not
            promise more than export can free.
    """

    container: str
    matches: Mapping[str, ExpertMatch] = field(default_factory=dict)
    expert_bytes: int


def expert_sets(
    tensors: Mapping[str, TensorInfo], *, num_experts: int, extra: int
) -> list[ExpertSet]:
    """All routed experts of a checkpoint, by the module that owns them.

    Args:
        tensors: all tensors of the checkpoint.
        num_experts: routed experts of every layer, as config.json states them.
        extra: router rows after the last expert's, as the family has them.

    Raises:
        CheckpointError: an expert is missing, incomplete, of another size than the others, or
            numbered beyond the count that config.json states.
        UnsupportedModelError: one module owns several expert sets, or identity experts.
    """
    names = plugins.names(architectures)
    recipes = [plugins.load(architectures, name) for name in names]
    grouped: dict[str, dict[str, ExpertMatch]] = defaultdict(dict)
    for name, info in tensors.items():
        if not is_routed(name):
            continue
        for recipe in recipes:
            found: ExpertMatch | None = recipe.match(name, info, num_experts=num_experts)
            if found is not None:
                grouped[found.container][name] = found
                break
    return [
        ExpertSet(
            container=container,
            matches=matches,
            expert_bytes=_expert_bytes(
                container, matches, tensors, num_experts=num_experts, extra=extra
            ),
        )
        for container, matches in sorted(grouped.items())
    ]


def _expert_bytes(
    container: str,
    matches: Mapping[str, ExpertMatch],
    tensors: Mapping[str, TensorInfo],
    *,
    num_experts: int,
    extra: int,
) -> int:
    stacked = 0
    parts: dict[int, dict[str, TensorInfo]] = defaultdict(dict)
    for name, found in matches.items():
        if found.expert is None:
            stacked += share(name, tensors[name], num_shares=num_experts)
        else:
            parts[found.expert][found.part] = tensors[name]
    if not parts:
        return stacked
    beyond = [expert for expert in sorted(parts) if expert >= num_experts]
    if beyond and len(beyond) == extra:
        raise UnsupportedModelError(
            f"{container} stores {extra} identity experts after its {num_experts} routed ones; "
            "moeprune cannot renumber those."
        )
    if beyond and not len(parts) % num_experts and beyond[-1] == len(parts) - 1:
        raise UnsupportedModelError(
            f"{container} stores {len(parts)} experts, {len(parts) // num_experts} times the "
            f"{num_experts} that config.json states: several expert sets under one name, which "
            "moeprune cannot prune."
        )
    # Stops at the first gap: a count of 10**12 in config.json must not fill the memory.
    missing = next((expert for expert in range(num_experts) if expert not in parts), None)
    if beyond or missing is not None:
        what = f"stores expert {beyond[0]}" if beyond else f"lacks expert {missing}"
        raise CheckpointError(
            f"{container} {what}, but config.json states {num_experts} experts, numbered from 0. "
            "Correct config.json, or download the checkpoint again."
        )
    quantised = any(_is_packed(info) for held in parts.values() for info in held.values())
    for expert in range(num_experts):
        lacking = sorted(parts[0].keys() ^ parts[expert].keys())
        if quantised:
            lacking = _lacking(parts, expert)
        if lacking:
            other = expert if lacking[0] in parts[0] else 0
            raise CheckpointError(
                f"{container}.{other} has no {lacking[0]!r}, which expert "
                f"{0 if other else expert} has. Download the checkpoint again."
            )
    sizes = [sum(info.nbytes for info in parts[expert].values()) for expert in range(num_experts)]
    for expert, size in enumerate(sizes):
        if size != sizes[0] and not quantised:
            raise CheckpointError(
                f"{container}: expert 0 is {sizes[0]} bytes and expert {expert} {size}; moeprune "
                "prunes unquantised experts of one size."
            )
    return stacked + min(sizes)


def _is_packed(info: TensorInfo) -> bool:
    return info.dtype not in ("BF16", "F16", "F32", "F64")


def _lacking(parts: Mapping[int, Mapping[str, TensorInfo]], expert: int) -> list[str]:
    """Parts in which a quantised expert differs from expert 0.

    A quantiser may leave out some experts: one that has plain weights only, or where expert 0 has
    plain weights only, differs by right.
    """
    found: list[str] = []
    mine, first = _by_module(parts[expert]), _by_module(parts[0])
    for module in sorted(mine.keys() | first.keys()):
        here, there = mine.get(module, {}), first.get(module, {})
        if here and there and _is_plain(here) != _is_plain(there):
            continue
        found += [f"{module}.{rest}" if rest else module for rest in here.keys() ^ there.keys()]
    return sorted(found)


def _is_plain(held: Mapping[str, TensorInfo]) -> bool:
    return held.keys() <= {"weight", "bias"} and not any(map(_is_packed, held.values()))


def _by_module(parts: Mapping[str, TensorInfo]) -> dict[str, dict[str, TensorInfo]]:
    """Parts of an expert by the linear map they belong to."""
    found: dict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for part, info in parts.items():
        module, _, rest = part.partition(".")
        found[module][rest] = info
    return found


def share(name: str, info: TensorInfo, *, num_shares: int) -> int:
    """Bytes of one of ``num_shares`` equal parts of a tensor.

    Raises:
        CheckpointError: the bytes do not divide evenly.
    """
    if info.nbytes % num_shares:
        raise CheckpointError(
            f"tensor {name!r} has {info.nbytes} bytes, which {num_shares} experts cannot share "
            "evenly: one expert is not a whole number of bytes."
        )
    return info.nbytes // num_shares

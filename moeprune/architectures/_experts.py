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
    tensors: Mapping[str, TensorInfo], *, num_experts: int, extra: int, stored_sets: int = 1
) -> list[ExpertSet]:
    """All routed experts of a checkpoint, by the module that owns them.

    Args:
        tensors: all tensors of the checkpoint.
        num_experts: routed experts of every layer, as config.json states them.
        extra: router rows after the last expert's, as the family has them.
        stored_sets: expert sets that one module stores under numbers that count on.

    Raises:
        CheckpointError: an expert is missing, incomplete, of another size than the others, or
            numbered beyond the count that config.json states.
        UnsupportedModelError: one module owns more expert sets than the family has.
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
                container,
                matches,
                tensors,
                num_experts=num_experts,
                extra=extra,
                stored_sets=stored_sets,
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
    stored_sets: int,
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
    total = num_experts * stored_sets
    beyond = [expert for expert in sorted(parts) if expert >= total]
    if len(beyond) == extra and beyond == list(range(total, total + extra)):
        beyond = []  # idle experts, which some formats store in part
    if beyond and not len(parts) % num_experts and beyond[-1] == len(parts) - 1:
        raise UnsupportedModelError(
            f"{container} stores {len(parts)} experts, {len(parts) // num_experts} times the "
            f"{num_experts} that config.json states: several expert sets under one name, which "
            "moeprune cannot prune."
        )
    # Stops at the first gap: a count of 10**12 in config.json must not fill the memory.
    missing = next((expert for expert in range(total) if expert not in parts), None)
    if beyond or missing is not None:
        what = f"stores expert {beyond[0]}" if beyond else f"lacks expert {missing}"
        sets = f"{stored_sets} times " if stored_sets > 1 else ""
        raise CheckpointError(
            f"{container} {what}, but config.json states {sets}{num_experts} experts, numbered "
            "from 0. Correct config.json, or download the checkpoint again."
        )
    firsts = range(0, total, num_experts)
    return stacked + sum(
        _smallest(container, {n: parts[n] for n in range(first, first + num_experts)})
        for first in firsts
    )


def _smallest(container: str, parts: Mapping[int, Mapping[str, TensorInfo]]) -> int:
    """Bytes of the smallest of one set's experts, after a check that all are of one kind."""
    quantised = any(_is_packed(info) for held in parts.values() for info in held.values())
    first = min(parts)
    sizes = {expert: sum(info.nbytes for info in held.values()) for expert, held in parts.items()}
    for expert in parts:
        lacking = sorted(parts[first].keys() ^ parts[expert].keys())
        if quantised:
            lacking = _lacking(parts, first, expert)
        if lacking:
            other = expert if lacking[0] in parts[first] else first
            raise CheckpointError(
                f"{container}.{other} has no {lacking[0]!r}, which expert "
                f"{first if other != first else expert} has. Download the checkpoint again."
            )
        if sizes[expert] != sizes[first] and not quantised:
            raise CheckpointError(
                f"{container}: expert {first} is {sizes[first]} bytes and expert {expert} "
                f"{sizes[expert]}; moeprune prunes unquantised experts of one size."
            )
    return min(sizes.values())


def _is_packed(info: TensorInfo) -> bool:
    return info.dtype not in ("BF16", "F16", "F32", "F64")


def _lacking(parts: Mapping[int, Mapping[str, TensorInfo]], first: int, expert: int) -> list[str]:
    """Parts in which a quantised expert differs from the first.

    A quantiser may leave out some experts: one that has plain weights only, or where the first has
    plain weights only, differs by right.
    """
    found: list[str] = []
    mine, others = _by_module(parts[expert]), _by_module(parts[first])
    for module in sorted(mine.keys() | others.keys()):
        here, there = mine.get(module, {}), others.get(module, {})
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

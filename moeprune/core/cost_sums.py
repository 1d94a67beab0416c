"""What the tensors on a token's path add up to, before it is known how many experts it runs.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from moeprune.core.layout import ExpertTensor, MoeLayout, TensorInfo
from moeprune.core.names import (
    is_number,
    is_text_path,
    names_head,
    names_next_token,
    names_shared,
    names_table,
)

Layer = tuple[str, int] | None
"""What stands before a layer's number in names, and the number; None outside of layers."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Parameters and stored bytes."""

    values: Fraction = Fraction()
    nbytes: Fraction = Fraction()

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.values + other.values, self.nbytes + other.nbytes)

    def times(self, factor: Fraction | int) -> Amount:
        """So many of it."""
        return Amount(self.values * factor, self.nbytes * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What tensors add up to.

    Attributes:
        expert: (L,) one routed expert of the layer, in the mean, as often as a pass runs the layer.
        shared: experts that every token runs.
        other: all the rest.
    """

    expert: tuple[Amount, ...]
    shared: Amount
    other: Amount


def summed(
    layout: MoeLayout,
    tensors: Mapping[str, TensorInfo],
    *,
    keep: Sequence[Sequence[int]],
    values: Mapping[str, int],
    unused: Collection[str],
) -> Sums:
    """Add up the tensors that a token of text passes; arguments as of ``cost.cost_of``."""
    kept = [frozenset(ids) for ids in keep]
    passes, following = _repeated(layout), _following(layout)
    tied = not any(map(names_head, tensors))
    held = [[Fraction(), Fraction()] for _ in kept]
    sums = {True: Amount(), False: Amount()}
    for name, info in tensors.items():
        rule = layout.tensors.get(name)
        if rule is not None and rule.role == "expert":
            if rule.follows or rule.shift:  # a shift: of the experts for images
                continue
            part = _part(rule, info, kept[rule.row], layout.num_experts[rule.row])
            if part:
                count = values.get(name)
                held[rule.row][0] += part * (math.prod(info.shape) if count is None else count)
                held[rule.row][1] += part * info.nbytes
            continue
        layer = _layer(name)
        if name in unused or layer in following or not is_text_path(name):
            continue
        if names_next_token(name.split(".")) or (rule is not None and _of_images(name, rule)):
            continue
        share = Fraction(passes.get(layer, 1))
        shared = rule is None and names_shared(name)
        if rule is not None:
            share *= _part(rule, info, kept[rule.row], layout.num_experts[rule.row])
        elif not shared and names_table(name) and not (tied and _is_head_too(name)):
            share /= max(info.shape[0], 1) if info.shape else 1
        amount = Amount(Fraction(values.get(name, _values(info))), Fraction(info.nbytes))
        sums[shared] += amount.times(share)
    often = layout.passes or (1,) * len(kept)
    return Sums(
        expert=tuple(
            Amount(*parts).times(Fraction(times, max(len(ids), 1)))
            for parts, times, ids in zip(held, often, kept, strict=True)
        ),
        shared=sums[True],
        other=sums[False],
    )


def _part(
    rule: ExpertTensor, info: TensorInfo, kept: Collection[int], num_experts: int
) -> Fraction | int:
    """What of a tensor is there for the experts that stay; of a table, the row that is read."""
    if rule.role == "table":
        return Fraction(1, max(info.shape[0], 1))
    if rule.axis is None:
        return int(rule.expert in kept)  # an idle expert computes nothing
    return Fraction(len(kept) * rule.block + rule.extra, num_experts * rule.block + rule.extra)


def _values(info: TensorInfo) -> int:
    return 0 if info.dtype.startswith(("I", "U", "BOOL")) else math.prod(info.shape)


def _is_head_too(name: str) -> bool:
    """Whether a table of embeddings serves as the output layer where there is no other."""
    return "per_layer" not in name


def _of_images(name: str, rule: ExpertTensor) -> bool:
    """Whether it is the router of expert sets that one module stores behind those for text."""
    last = name.rpartition(".")[2].rpartition("_")
    return rule.role == "router" and last[0] == "weight" and is_number(last[2])


def _layer(name: str) -> Layer:
    parts = name.split(".")
    first = next((index for index, part in enumerate(parts) if is_number(part)), None)
    return None if first is None else (".".join(parts[:first]), int(parts[first]))


def _following(layout: MoeLayout) -> set[Layer]:
    """The next-token-prediction layers that have experts."""
    return {_layer(name) for name, rule in layout.tensors.items() if rule.follows}


def _repeated(layout: MoeLayout) -> dict[Layer, int]:
    """Layer -> how often a forward pass runs it, of those between the first and the last loop."""
    if not layout.passes:
        return {}
    looped = {
        _layer(name): layout.passes[rule.row]
        for name, rule in layout.tensors.items()
        if layout.passes[rule.row] > 1 and not rule.follows
    }
    found = [at for at in looped if at is not None]
    if not found:
        return {}
    stack, first, last = found[0][0], min(found)[1], max(found)[1]
    most = max(looped.values())
    return {(stack, number): most for number in range(first, last + 1)}

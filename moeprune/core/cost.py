"""What one token costs: the parameters that it activates, and the bytes of weights it reads.

Counted from the shapes that headers state; nothing is loaded or run. After "Halving the Activated
Experts of a MoE Without Training", section 6.6. A token of text is meant: vision, audio and talker
models, what leads from them into the language model, and next-token-prediction layers do not count.
Embeddings count with the one row that a token reads; where they are the output layer too, as that.
A layer that a forward pass runs several times counts as often.

L MoE layers, E routed experts of a layer, k experts that the native model runs per token.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from moeprune.core.layout import ExpertTensor, MoeLayout, TensorInfo
from moeprune.core.names import (
    is_number,
    is_text_path,
    names_head,
    names_next_token,
    names_shared,
    names_table,
)
from moeprune.core.policy import RoutingPolicy

PARTS = ("routed", "shared", "other")
"""Of a token's path: routed experts; shared experts; all the rest, routers included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activated:
    """What one token activates.

    Attributes:
        routed: parameters of the routed experts that run.
        shared: parameters of experts that every token runs.
        other: parameters of all the rest.
        routed_bytes: stored bytes of ``routed``.
        bytes_per_token: stored bytes of everything that the token activates: what decoding it by
            itself (batch size 1) reads of the weights, without the cache of earlier tokens.
    """

    routed: int
    shared: int
    other: int
    routed_bytes: int
    bytes_per_token: int

    @property
    def total(self) -> int:
        """All activated parameters."""
        return self.routed + self.shared + self.other

    @property
    def experts(self) -> int:
        """The routed and the shared experts' together: what the paper calls the expert term."""
        return self.routed + self.shared

    def to_json(self) -> dict[str, int]:
        """Plain numbers, with the total."""
        return {
            "routed": self.routed,
            "shared": self.shared,
            "other": self.other,
            "total": self.total,
            "routed_bytes": self.routed_bytes,
            "bytes_per_token": self.bytes_per_token,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a token costs under a routing policy, beside the native model's.

    Attributes:
        activated: under the policy; for a pruned model, in what is left of it.
        native: of the whole model with its own routing.
    """

    activated: Activated
    native: Activated

    @property
    def routed(self) -> int:
        """Parameters of the routed experts that run."""
        return self.activated.routed

    @property
    def shared(self) -> int:
        """Parameters of the experts that every token runs."""
        return self.activated.shared

    @property
    def other(self) -> int:
        """Parameters of all the rest."""
        return self.activated.other

    @property
    def total(self) -> int:
        """All activated parameters."""
        return self.activated.total

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that decoding one token reads, as stored."""
        return self.activated.bytes_per_token

    @property
    def relative(self) -> dict[str, float]:
        """Its share of native: of routed experts, of all experts, in all, and of the bytes."""
        mine, native = self.activated, self.native
        return {
            "routed": _over(mine.routed, native.routed),
            "experts": _over(mine.experts, native.experts),
            "total": _over(mine.total, native.total),
            "bytes_per_token": _over(mine.bytes_per_token, native.bytes_per_token),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain types: the numbers of both, and their ratios."""
        return {
            **self.activated.to_json(),
            "native": self.native.to_json(),
            "relative": self.relative,
        }


def cost_of(
    layout: MoeLayout,
    tensors: Mapping[str, TensorInfo],
    *,
    policy: RoutingPolicy | None = None,
    keep: Sequence[Sequence[int]] | None = None,
    values: Mapping[str, int] | None = None,
    unused: Collection[str] = (),
) -> Cost:
    """What one token costs under ``policy`` in what ``keep`` leaves, and in the native model.

    Where a token may choose an idle expert, or none, it activates fewer; the most is counted.

    Args:
        layout: of the model.
        tensors: all stored tensors of the (unpruned) model.
        policy: None: the native routing.
        keep: L sequences of the experts that stay; None: all.
        values: stored name -> parameters that the tensor stands for, of quantised ones; a tensor
            that is not in it counts as many as its shape has, or none if it holds whole numbers
            and is no expert's.
        unused: names of further tensors that no token passes, such as next-token layers without
            experts.
    """
    return Cost(
        activated=_activated(layout, tensors, policy, keep, values or {}, unused),
        native=_activated(layout, tensors, None, None, values or {}, unused),
    )


def experts_run(layout: MoeLayout, policy: RoutingPolicy | None) -> tuple[int, ...]:
    """(L,) experts that a token runs in each MoE layer, each time that it passes the layer.

    Layers whose router looks its choice up in a table stay native under every policy.
    """
    looked_up = {rule.row for rule in layout.tensors.values() if rule.role == "table"}
    return tuple(
        layout.top_k if policy is None or row in looked_up else min(policy.k1, num_experts)
        for row, num_experts in enumerate(layout.num_experts)
    )


def _activated(
    layout: MoeLayout,
    tensors: Mapping[str, TensorInfo],
    policy: RoutingPolicy | None,
    keep: Sequence[Sequence[int]] | None,
    values: Mapping[str, int],
    unused: Collection[str],
) -> Activated:
    kept = [frozenset(ids) for ids in keep or map(range, layout.num_experts)]
    shares = [
        Fraction(min(run, len(ids)), len(ids))
        for run, ids in zip(experts_run(layout, policy), kept, strict=True)
    ]
    passes, following = _repeated(layout), _following(layout)
    tied = not any(map(names_head, tensors))
    numbers = dict.fromkeys(PARTS, Fraction())
    sizes = dict.fromkeys(PARTS, Fraction())
    for name, info in tensors.items():
        rule = layout.tensors.get(name)
        layer = _layer(name)
        if name in unused or layer in following or not is_text_path(name):
            continue
        if names_next_token(name.split(".")) or _of_images(name, rule):
            continue
        part, share = "other", Fraction(1)
        if rule is not None:
            part = "routed" if rule.role == "expert" else "other"
            share = _share(rule, info, kept[rule.row], layout.num_experts[rule.row])
            share *= shares[rule.row] if part == "routed" else 1
        elif names_shared(name):
            part = "shared"
        elif names_table(name) and (not tied or "per_layer" in name) and info.shape:
            share = Fraction(1, max(info.shape[0], 1))
        share *= passes.get(layer, 1)
        numbers[part] += share * values.get(name, _values(info, part))
        sizes[part] += share * info.nbytes
    return Activated(
        **{part: round(number) for part, number in numbers.items()},
        routed_bytes=round(sizes["routed"]),
        bytes_per_token=round(sum(sizes.values())),
    )


def _share(
    rule: ExpertTensor, info: TensorInfo, kept: Collection[int], num_experts: int
) -> Fraction:
    """What of a tensor is there for the experts that stay; of a table, the row that is read."""
    if rule.role == "table":
        return Fraction(1, max(info.shape[0], 1))
    if rule.axis is None:
        return Fraction(rule.expert in kept)  # an idle expert computes nothing
    return Fraction(len(kept) * rule.block + rule.extra, num_experts * rule.block + rule.extra)


def _values(info: TensorInfo, part: str) -> int:
    whole = info.dtype.startswith(("I", "U", "BOOL")) and part == "other"
    return 0 if whole else math.prod(info.shape)


def _over(mine: int, native: int) -> float:
    return mine / native if native else 1.0


def _of_images(name: str, rule: ExpertTensor | None) -> bool:
    """Whether it serves the expert sets that one module stores behind those for text."""
    if rule is None:
        return False
    last = name.rpartition(".")[2].rpartition("_")
    return rule.shift > 0 or (rule.role == "router" and last[0] == "weight" and is_number(last[2]))


def _layer(name: str) -> tuple[str, int] | None:
    """(stack of layers, number in it) of a tensor's name; None outside of layers."""
    parts = name.split(".")
    first = next((index for index, part in enumerate(parts) if is_number(part)), None)
    return None if first is None else (".".join(parts[:first]), int(parts[first]))


def _following(layout: MoeLayout) -> set[tuple[str, int] | None]:
    """The next-token-prediction layers that have experts."""
    return {_layer(name) for name, rule in layout.tensors.items() if rule.follows}


def _repeated(layout: MoeLayout) -> dict[tuple[str, int] | None, int]:
    """Layer -> how often a forward pass runs it, of those between the first and the last loop."""
    looped = {
        _layer(name): layout.passes[rule.row]
        for name, rule in layout.tensors.items()
        if layout.passes and layout.passes[rule.row] > 1 and not rule.follows
    }
    found = [at for at in looped if at is not None]
    if not found:
        return {}
    stack, first, last = found[0][0], min(found)[1], max(found)[1]
    most = max(looped.values())
    return {(stack, number): most for number in range(first, last + 1)}

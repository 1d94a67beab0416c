"""What one token costs: the parameters that it activates, and the bytes of weights it reads.

Counted from the shapes that headers state; nothing is loaded or run. After "Halving the Activated
Experts of a MoE Without Training", section 6.6. A token of text is meant: vision, audio and talker
models, what leads from them into the language model, and next-token-prediction layers do not count.
Embeddings count with the one row that a token reads; where they are the output layer too, as that.
A layer that a forward pass runs several times counts as often.

L MoE layers, E routed experts of a layer, k experts that the native model runs per token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moeprune.core.cost_sums import Amount, Sums, summed
from moeprune.core.layout import MoeLayout, TensorInfo
from moeprune.core.policy import RoutingPolicy


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
    stored: Mapping[str, TensorInfo] | None = None,
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
        stored: tensors that are stored in another way in what is left, with the shape that they
            have in ``tensors`` and the bytes that they would be if every expert stayed.
    """
    every = tuple(map(range, layout.num_experts))
    whole = summed(layout, tensors, keep=every, values=values or {}, unused=unused)
    left = whole
    if keep is not None or stored:
        held = {**tensors, **(stored or {})}
        left = summed(layout, held, keep=keep or every, values=values or {}, unused=unused)
    return Cost(
        activated=_activated(left, experts_run(layout, policy), keep or every),
        native=_activated(whole, experts_run(layout, None), every),
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


def _activated(sums: Sums, runs: Sequence[int], keep: Sequence[Sequence[int] | range]) -> Activated:
    routed = sum(
        (
            one.times(min(run, len(ids)))
            for one, run, ids in zip(sums.expert, runs, keep, strict=True)
        ),
        start=Amount(),
    )
    return Activated(
        routed=round(routed.values),
        shared=round(sums.shared.values),
        other=round(sums.other.values),
        routed_bytes=round(routed.nbytes),
        bytes_per_token=round((routed + sums.shared + sums.other).nbytes),
    )


def _over(mine: int, native: int) -> float:
    return mine / native if native else 1.0

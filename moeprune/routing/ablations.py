"""What a router does worse on purpose: which of choice and weights matters, at the same cost.

After "Halving the Activated Experts of a MoE Without Training", section 3: equal weights; experts
drawn by their probabilities; any experts. A token's weights keep their sum.

T tokens, C choices of the router, K experts chosen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moeprune.core.policy import RoutingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One router's part in an ablation.

    Attributes:
        kind: one of :data:`moeprune.core.policy.ABLATIONS`.
        num_choices: C.
        scaled: whether the router returns probabilities, and multiplies each weight by a learned
            factor of its choice, which is no part of them (Gemma 4).
        seed: of what is drawn, the layer's own.
    """

    kind: str
    num_choices: int
    scaled: bool
    seed: int

    @classmethod
    def of(
        cls, policy: RoutingPolicy, router: nn.Module, *, layer: int, num_choices: int
    ) -> Ablation | None:
        """The part of ``router`` in ``policy``; None without an ablation.

        Args:
            policy: names the ablation and the seed.
            router: of one layer.
            layer: its number; every layer draws for itself.
            num_choices: C.
        """
        if policy.ablation is None:
            return None
        return cls(
            kind=policy.ablation,
            num_choices=num_choices,
            scaled=hasattr(router, "per_expert_scale"),
            seed=(policy.seed * 100_003 + layer) % 2**63,
        )

    def apply(
        self, run: Callable[[int], tuple[Any, ...]], weights_TK: Tensor, ids_TK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Other weights and ids than these, which follow the policy.

        Args:
            run: k -> what the router returns with k experts.
            weights_TK: of the policy.
            ids_TK: int64.

        Returns:
            (T, K) each.
        """
        if self.kind == "uniform" and not self.scaled:
            return weights_TK.mean(-1, keepdim=True).expand_as(weights_TK).contiguous(), ids_TK
        scores_TC, factors_TC = self._choices(run)
        sum_T1 = _over(weights_TK.float(), factors_TC.gather(-1, ids_TK)).sum(-1, keepdim=True)
        if self.kind == "uniform":
            share_TK = torch.full_like(scores_TC.gather(-1, ids_TK), 1 / ids_TK.shape[-1])
        else:
            ids_TK = self._drawn(scores_TC, ids_TK.shape[-1])
            share_TK = scores_TC.gather(-1, ids_TK)
            share_TK = share_TK / share_TK.sum(-1, keepdim=True).clamp_min(1e-30)
        share_TK = share_TK * sum_T1 * factors_TC.gather(-1, ids_TK)
        return share_TK.to(weights_TK.dtype), ids_TK

    def _choices(self, run: Callable[[int], tuple[Any, ...]]) -> tuple[Tensor, Tensor]:
        """(T, C) float32 each: in proportion to the probability of every choice; its factor."""
        first_TC, weights_TC, ids_TC, *_ = run(self.num_choices)
        weights_TC = weights_TC.float()
        weights_TC = torch.zeros_like(weights_TC).scatter(-1, ids_TC, weights_TC)
        if not self.scaled:  # a sign is that of a scale of them all
            return weights_TC.abs(), torch.ones_like(weights_TC)
        scores_TC = first_TC.float()
        return scores_TC, _over(weights_TC, scores_TC)

    def _drawn(self, scores_TC: Tensor, k: int) -> Tensor:
        """(T, k) choices without replacement, never one that has no probability.

        The k largest of p / Exp(1) are a draw by p, one after the other.
        """
        noise_TC = torch.empty(scores_TC.shape).exponential_(generator=self._generator(scores_TC))
        by_TC = scores_TC if self.kind == "sampled" else (scores_TC > 0).float()
        return (by_TC / noise_TC.to(by_TC.device)).topk(k, dim=-1).indices

    def _generator(self, scores_TC: Tensor) -> torch.Generator:
        """Of one call: it goes by what the call ranks, not by the calls before it.

        So an evaluation that was interrupted, or that processes share, draws what a whole one does.
        """
        order_TC = scores_TC.detach().argsort(dim=-1, descending=True, stable=True)
        told = hashlib.blake2b(order_TC.to("cpu", torch.int32).numpy().tobytes(), digest_size=8)
        told.update(self.seed.to_bytes(8, "little"))
        return torch.Generator().manual_seed(int.from_bytes(told.digest(), "little") >> 1)


def _over(values: Tensor, divisors: Tensor) -> Tensor:
    """``values / divisors``; 0 where there is nothing to divide by."""
    return torch.where(divisors == 0, 0, values / divisors)

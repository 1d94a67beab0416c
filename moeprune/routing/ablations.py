"""What a router does worse on purpose: which of choice and weights matters, at the same cost.

After "Halving the Activated Experts of a MoE Without Training", section 3: equal weights; experts
drawn by their probabilities; any experts. A token's weights keep their sum.

T tokens, C choices of the router, K experts chosen.
"""

from __future__ import annotations

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
        scale_C: a learned factor of each choice's weight, which is no part of its probability; or
            None.
        generator: what is drawn comes from here, call after call.
    """

    kind: str
    num_choices: int
    scale_C: Tensor | None
    generator: torch.Generator

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
        generator = torch.Generator().manual_seed((policy.seed * 100_003 + layer) % 2**63)
        return cls(
            kind=policy.ablation,
            num_choices=num_choices,
            scale_C=getattr(router, "per_expert_scale", None),
            generator=generator,
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
        plain_TK = weights_TK.float()
        if self.scale_C is not None:
            factor_TK = self.scale_C.float()[ids_TK]
            plain_TK = torch.where(factor_TK == 0, 0, plain_TK / factor_TK)
        sum_T1 = plain_TK.sum(-1, keepdim=True)
        if self.kind == "uniform":
            share_TK = torch.full_like(plain_TK, 1 / plain_TK.shape[-1])
        else:
            scores_TC = self._scores(run)
            ids_TK = self._drawn(scores_TC, ids_TK.shape[-1])
            share_TK = scores_TC.gather(-1, ids_TK)
            share_TK = share_TK / share_TK.sum(-1, keepdim=True).clamp_min(1e-30)
        share_TK = share_TK * sum_T1
        if self.scale_C is not None:
            share_TK = share_TK * self.scale_C.float()[ids_TK]
        return share_TK.to(weights_TK.dtype), ids_TK

    def _scores(self, run: Callable[[int], tuple[Any, ...]]) -> Tensor:
        """(T, C) float32, in proportion to the probabilities of every choice."""
        _, weights_TC, ids_TC, *_ = run(self.num_choices)
        weights_TC = weights_TC.float()
        if self.scale_C is not None:
            factor_TC = self.scale_C.float()[ids_TC]
            weights_TC = torch.where(factor_TC == 0, 0, weights_TC / factor_TC)
        return torch.zeros_like(weights_TC).scatter(-1, ids_TC, weights_TC)

    def _drawn(self, scores_TC: Tensor, k: int) -> Tensor:
        """(T, k) choices without replacement, never one that has no probability.

        The k largest of p / Exp(1) are a draw by p, one after the other.
        """
        noise_TC = torch.empty(scores_TC.shape).exponential_(generator=self.generator)
        by_TC = scores_TC if self.kind == "sampled" else (scores_TC > 0).float()
        return (by_TC / noise_TC.to(by_TC.device)).topk(k, dim=-1).indices

"""How well one ranking serves all domains as routing disperses (MESA, appendix F, figure 8).

The paper prints no formula. What is simulated here: a token's router logits are the sum of a
preference for some experts that all tokens share, one of its domain, and one of its own,

    z = s · shared_le + DOMAIN · own_dle + TOKEN · z_xle,    all standard normal,

and load balancing takes away the shared one: s falls, while the others stay. Entropy rises, and the
ranking by all tokens' mass tells less and less of what the worst-off domain needs.

D domains, L MoE layers, E experts, X tokens of a domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeprune.analysis.kendall import tau_b
from moeprune.analysis.overlap import top_mask
from moeprune.core.choice import domain_loss
from moeprune.core.pooling import row_norm
from moeprune.core.stats import Array

DOMAINS, LAYERS, EXPERTS, TOKENS = 6, 24, 32, 64
DOMAIN, TOKEN = 0.5, 0.5
SHARED = (3.0, 2.5, 2.0, 1.6, 1.3, 1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


@dataclass(frozen=True, slots=True)
class Point:
    """One level of dispersion.

    Attributes:
        entropy_ratio: mean entropy of a token over log2 E.
        tau: see :func:`global_tau`.
    """

    entropy_ratio: float
    tau: float


def simulate(*, seed: int = 0, shared: Sequence[float] = SHARED) -> list[Point]:
    """Matrices of 24 layers, 32 experts and 6 domains, more and more dispersed.

    Args:
        seed: of the draw, which all levels share.
        shared: s of each level.
    """
    # RandomState, because numpy promises its stream for ever; a Generator's may change.
    draw = np.random.RandomState(seed)
    shared_LE = draw.standard_normal((LAYERS, EXPERTS))
    own_DLE = draw.standard_normal((DOMAINS, LAYERS, EXPERTS)) * DOMAIN
    token_DXLE = draw.standard_normal((DOMAINS, TOKENS, LAYERS, EXPERTS)) * TOKEN
    points = []
    for level in shared:
        logits_DXLE = level * shared_LE + own_DLE[:, None] + token_DXLE
        weights_DXLE = np.exp(logits_DXLE - logits_DXLE.max(axis=-1, keepdims=True))
        prob_DXLE = row_norm(weights_DXLE)
        bits = -(prob_DXLE * np.log2(prob_DXLE)).sum(axis=-1).mean()
        mass_DLE = row_norm(prob_DXLE.sum(axis=1))
        ratio = float(bits / np.log2(EXPERTS))
        points.append(
            Point(ratio, global_tau(mass_DLE.mean(axis=0), mass_DLE, (EXPERTS,) * LAYERS))
        )
    return points


def global_tau(score_LE: Array, mass_DLE: Array, num_experts: Sequence[int]) -> float:
    """Kendall's τ between the ranking of all domains and that of the worst-off one.

    The worst-off domain is the one that loses most if each layer gives away its lowest quarter.

    Args:
        score_LE: (L, E) float64, mass of all domains.
        mass_DLE: (D, L, E) float64, mass of each domain, rows normalised to 1.
        num_experts: (L,) experts of each layer.

    Returns:
        Mean over layers; NaN if no layer has two experts that differ.
    """
    kept_L = [experts - experts // 4 for experts in num_experts]
    keep_LE = top_mask(score_LE, kept_L, num_experts)
    worst = int(np.argmax(domain_loss(mass_DLE, keep_LE)))
    taus = [
        tau_b(score_LE[row, :experts], mass_DLE[worst, row, :experts])
        for row, experts in enumerate(num_experts)
    ]
    known = [tau for tau in taus if not np.isnan(tau)]
    return float(np.mean(known)) if known else float("nan")

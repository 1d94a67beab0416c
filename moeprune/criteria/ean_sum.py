"""EAN as a sum: all output norms of an expert, so how often it is picked counts too.

S_e = Σ_{x routed to e} ‖f_e(x)‖₂, per token of the pooled text: `ean` times `frequency`. Expert
activation norm, summed, a baseline of REAP (arXiv 2510.13999).
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_token

NEEDS = ("norm_sum",)
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Summed output norm of every expert.

    Args:
        sums: pooled ``norm_sum``, (L, E) float64: a mean over tokens.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0.
    """
    return per_token(sums["norm_sum"])

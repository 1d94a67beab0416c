"""REAP as a sum: all that an expert adds, so how often it is picked counts too.

S_e = Σ_{x routed to e} g_e(x) · ‖f_e(x)‖₂, per token of the pooled text: `reap` times `frequency`.
The code of REAP (arXiv 2510.13999) calls it the weighted sum of expert activation norms.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_token

NEEDS = ("gate_norm_sum",)
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Summed REAP of every expert.

    Args:
        sums: pooled ``gate_norm_sum``, (L, E) float64: a mean over tokens.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0.
    """
    return per_token(sums["gate_norm_sum"])

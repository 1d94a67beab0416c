"""REAP: mean gate-weighted output norm over the tokens an expert received (arXiv 2510.13999).

S_e = Σ_{x routed to e} g_e(x) · ‖f_e(x)‖₂ / |{x routed to e}|.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_routed_token

NEEDS = ("gate_norm_sum", "count")
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """REAP of every expert.

    Args:
        sums: pooled ``gate_norm_sum`` and ``count``, (L, E) float64 each.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0.
    """
    return per_routed_token(sums["gate_norm_sum"], sums["count"])

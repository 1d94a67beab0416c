"""REAP with the raw router probability in place of the gate weight that the model applies.

S_e = Σ_{x routed to e} π_e(x) · ‖f_e(x)‖₂ / |{x routed to e}|. What the MESA paper
("When Load-Balancing Goes Too Far", appendix C) calls REAP, and the code of REAP (arXiv 2510.13999)
computed before it renormalised. π_e is over all experts: a token whose probability is spread thin
counts less than with `reap`, where most models scale the chosen weights up to sum to 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_routed_token

NEEDS = ("prob_norm_sum", "count")
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """REAP of every expert by router probability.

    Args:
        sums: pooled ``prob_norm_sum`` and ``count``, (L, E) float64 each.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0.
    """
    return per_routed_token(sums["prob_norm_sum"], sums["count"])

"""MSAN: mean squared activation norm over the tokens an expert received (arXiv 2606.15716).

S_e = Σ_{x routed to e} ‖f_e(x)‖₂² / |{x routed to e}|: as `man`, with more weight on the
tokens that an expert answers most strongly.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_routed_token

NEEDS = ("norm_sq_sum", "count")
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Mean squared output norm of every expert.

    Args:
        sums: pooled ``norm_sq_sum`` and ``count``, (L, E) float64 each.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0.
    """
    return per_routed_token(sums["norm_sq_sum"], sums["count"])

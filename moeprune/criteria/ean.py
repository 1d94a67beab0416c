"""EAN: mean output norm over the tokens an expert received, whatever its gate weight.

S_e = Σ_{x routed to e} ‖f_e(x)‖₂ / |{x routed to e}|: expert activation norm, a baseline of REAP
(arXiv 2510.13999), as a mean; `ean-sum` is the sum. `man` is the same number under the name of
another paper.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_routed_token

NEEDS = ("norm_sum", "count")
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Mean output norm of every expert.

    Args:
        sums: pooled ``norm_sum`` and ``count``, (L, E) float64 each.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0.
    """
    return per_routed_token(sums["norm_sum"], sums["count"])

"""Fisher: what leaving an expert out does to the loss, squared, by its gradient.

S_e = Σ_{x routed to e} (γ(x) · g_e(x) f_e(x))² per target token, where γ is the gradient of the
summed next-token loss by what the block gives. Nothing takes the expert's place: see `fisher-cf`.
Needs stats of `calibrate --loss-aware`.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_token

NEEDS = ("fisher_sum",)
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Fisher information of every expert.

    Args:
        sums: pooled ``fisher_sum``, (L, E) float64: a mean over target tokens.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0.
    """
    return per_token(sums["fisher_sum"])

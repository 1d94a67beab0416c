"""Gate: the gate weight an expert receives in all, per token of the pooled text.

S_e = Σ_{x routed to e} g_e(x): the weighted frequency in the code of REAP (arXiv 2510.13999).
Unlike `mass` it is blind to the probability that a token leaves with experts it does not choose.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_token

NEEDS = ("gate_sum",)
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Summed gate weight of every expert.

    Args:
        sums: pooled ``gate_sum``, (L, E) float64: a mean over tokens.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0.
    """
    return per_token(sums["gate_sum"])

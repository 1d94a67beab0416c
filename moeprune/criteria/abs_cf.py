"""Absolute counterfactual change of the loss: as `fisher-cf`, not squared.

S_e = Σ_{x routed to e} |γ(x) · δ_e(x)| per target token, see `fisher-cf`. Needs stats of
`calibrate --loss-aware`.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_token

NEEDS = ("abs_cf_sum",)
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Absolute change of the loss of every expert.

    Args:
        sums: pooled ``abs_cf_sum``, (L, E) float64: a mean over target tokens.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0.
    """
    return per_token(sums["abs_cf_sum"])

"""Router mass: the share of a layer's router probability that an expert holds.

R_e = Σ_x π_e(x) / Σ_e Σ_x π_e(x): R of MESA, and what RM-Uniform ranks by.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.pooling import row_norm
from moeprune.core.stats import Array

NEEDS = ("prob_sum",)
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Router mass of every expert.

    Args:
        sums: pooled ``prob_sum``, (L, E) float64.

    Returns:
        (L, E) float64, ≥ 0, each row sums to 1.
    """
    return row_norm(sums["prob_sum"])

"""Counterfactual Fisher: what the loss would be, squared, could the expert not be selected.

S_e = Σ_{x routed to e} (γ(x) · δ_e(x))² per target token, where γ is the gradient of the summed
next-token loss by what the block gives and δ_e what it would give instead less what it gives: the
next ranked expert moves in, with weights by the family's own rule. Half of it is what a plan
predicts of the loss. Needs stats of `calibrate --loss-aware`.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_token

NEEDS = ("fisher_cf_sum",)
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Counterfactual Fisher information of every expert.

    Args:
        sums: pooled ``fisher_cf_sum``, (L, E) float64: a mean over target tokens.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0.
    """
    return per_token(sums["fisher_cf_sum"])

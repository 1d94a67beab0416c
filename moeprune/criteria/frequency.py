"""Frequency: how often the router picks an expert, per token of the pooled text.

S_e = |{x routed to e}|: the usual baseline, e.g. of REAP (arXiv 2510.13999).
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.stats import Array
from moeprune.criteria._shared import per_token

NEEDS = ("count",)
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Tokens routed to every expert, per token of text.

    Args:
        sums: pooled ``count``, (L, E) float64: a mean over tokens.

    Returns:
        (L, E) float64, ≥ 0; an expert that received no token scores 0. Each row sums to
        the experts run per token, times the passes of a layer that runs several.
    """
    return per_token(sums["count"])

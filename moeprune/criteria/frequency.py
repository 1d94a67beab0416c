"""Frequency: how often the router picks an expert, per token of the pooled text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from moeprune.core.stats import Array

NEEDS = ("count",)
OPTIONS: tuple[str, ...] = ()


def score(sums: Mapping[str, Array]) -> Array:
    """Share of tokens routed to every expert.

    Args:
        sums: pooled ``count``, (L, E) float64: a mean over tokens.

    Returns:
        (L, E) float64 from 0 to 1; each row sums to the experts run per token.
    """
    return np.array(sums["count"], dtype=np.float64)

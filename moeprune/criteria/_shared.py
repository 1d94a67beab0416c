"""What several criteria compute: a mean over routed tokens, or a sum per token of text."""

from __future__ import annotations

import numpy as np

from moeprune.core.stats import Array


def per_routed_token(sum_LE: Array, count_LE: Array) -> Array:
    """Mean over the tokens that an expert received; 0 where it received none.

    Args:
        sum_LE: (L, E) float64, pooled.
        count_LE: (L, E) float64 tokens routed to the expert, pooled alike.

    Returns:
        (L, E) float64.
    """
    out_LE = np.zeros(sum_LE.shape, dtype=np.float64)
    return np.asarray(np.divide(sum_LE, count_LE, out=out_LE, where=count_LE > 0))


def per_token(sum_LE: Array) -> Array:
    """The sum per token of the pooled text, which is how sums are pooled: a copy.

    A layer that a forward pass runs several times adds up all its passes.

    Args:
        sum_LE: (L, E) float64, pooled.

    Returns:
        (L, E) float64.
    """
    return np.array(sum_LE, dtype=np.float64)

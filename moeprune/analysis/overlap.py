"""Whether domains share their favourite experts more than chance would have it.

D domains, L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moeprune.core.stats import Array


def top_mask(mass_XLE: Array, top_L: Sequence[int], num_experts: Sequence[int]) -> Array:
    """The ``top_L`` experts with the most mass in each layer; of equals, the lower id.

    Args:
        mass_XLE: (…, L, E) float64.
        top_L: (L,) how many of each layer.
        num_experts: (L,) experts of each layer.

    Returns:
        (…, L, E) bool.
    """
    real_LE = np.arange(mass_XLE.shape[-1]) < np.array(num_experts)[:, None]
    order_XLE = np.argsort(np.where(real_LE, -mass_XLE, np.inf), axis=-1, kind="stable")
    rank_XLE = np.argsort(order_XLE, axis=-1, kind="stable")
    return np.asarray(rank_XLE < np.array(top_L)[:, None])


def overlap_L(one_LE: NDArray[np.bool_], other_LE: NDArray[np.bool_]) -> Array:
    """Jaccard overlap of two sets of experts in each layer; 1 where both are empty.

    Args:
        one_LE: (…, L, E) bool.
        other_LE: the same.

    Returns:
        (…, L) float64 in [0, 1].
    """
    shared = (one_LE & other_LE).sum(axis=-1)
    either = (one_LE | other_LE).sum(axis=-1)
    out = np.ones(shared.shape, dtype=np.float64)
    return np.asarray(np.divide(shared, either, out=out, where=either > 0))


def expected_overlap(experts: int, top: int) -> float:
    """Mean Jaccard overlap of two sets of ``top`` of ``experts``, both picked at random; exact.

    Σ_k P(k shared) · k / (2 · top - k), where k is hypergeometric.
    """
    total = math.comb(experts, top)
    shared = range(max(0, 2 * top - experts), top + 1)
    return sum(
        math.comb(top, k) * math.comb(experts - top, top - k) / total * (k / (2 * top - k))
        for k in shared
        if k
    )

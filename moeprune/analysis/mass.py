"""Where router mass lies: by rank within a token, and by expert over all tokens.

L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

import numpy as np

from moeprune.core.pooling import DomainWeights, pool, row_norm
from moeprune.core.stats import Array, CalibrationStats


def rank_mass_LE(stats: CalibrationStats, *, domain_weights: DomainWeights = None) -> Array:
    """Share of a token's router mass that its r-th likeliest expert has, mean over tokens.

    Returns:
        (L, E) float64, falling within a row; rows sum to 1 (routed experts only, where tokens may
        choose idle ones); zeros beyond a narrow layer's experts.
    """
    sums_LE = pool(stats, ["rank_prob_sum"], domain_weights=domain_weights)["rank_prob_sum"]
    return row_norm(sums_LE)


def expert_mass_LE(stats: CalibrationStats, *, domain_weights: DomainWeights = None) -> Array:
    """Router mass of a layer's experts, largest first.

    Returns:
        (L, E) float64, falling within a row; rows sum to 1.
    """
    mass_LE = row_norm(pool(stats, ["prob_sum"], domain_weights=domain_weights)["prob_sum"])
    return np.asarray(-np.sort(-mass_LE, axis=1))


def cumulative_LE(mass_LE: Array) -> Array:
    """Mass of the first n experts of each row, n = 1 to E: never falls, ends at 1."""
    sums_LE = np.cumsum(mass_LE, axis=1)
    last_L1 = sums_LE[:, -1:]
    # The last digits of a sum must not let a share of everything miss 1.
    out_LE = np.ones_like(sums_LE)
    return np.asarray(np.divide(sums_LE, last_L1, out=out_LE, where=last_L1 > 0))


def grid(width: int, top_k: int) -> tuple[int, ...]:
    """Numbers of experts worth a line: 1, 2, 3, 4, 6, 8, 12, …, the top-k, quarters, all."""
    steps = {2**power for power in range(20)} | {3 * 2**power for power in range(20)}
    steps |= {top_k, width // 4, width // 2, 3 * width // 4, width}
    return tuple(sorted(step for step in steps if 1 <= step <= width))

"""What the stats say about the model's routing, before anything is removed.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from moeprune.core.pooling import DomainWeights, pool
from moeprune.core.stats import Array, CalibrationStats

OVER_DISPERSED = "over-dispersed"
STANDARD = "standard"

# H̄ > 0.85 · log2 E: the practical diagnostic of MESA, section 3.1.
_OVER_DISPERSED_ABOVE = 0.85
_DIGITS = 12  # of numbers in a plan: the last bits of a sum depend on the machine


def entropy_ratio_L(stats: CalibrationStats, *, domain_weights: DomainWeights = None) -> Array:
    """Mean router entropy of a token as a share of its maximum, log2 of its choices (E).

    Returns:
        (L,) float64 in [0, 1]; 1 = every expert equally likely for every token. NaN for a layer of
        one expert, which has no choice to make.
    """
    entropy_L = pool(stats, ["entropy_sum"], domain_weights=domain_weights)["entropy_sum"]
    if stats.model.passes:
        entropy_L = entropy_L / np.array(stats.model.passes)
    choices_L = np.array(stats.model.num_experts, dtype=np.float64) + stats.model.idle_experts
    most_L = np.log2(choices_L)
    out_L = np.full(most_L.shape, np.nan)
    return np.asarray(np.divide(entropy_L, most_L, out=out_L, where=most_L > 0))


def routing(stats: CalibrationStats, *, domain_weights: DomainWeights = None) -> dict[str, Any]:
    """The ``routing`` entry of a plan.

    Returns:
        ``entropy_ratio`` (mean over tokens and layers), ``entropy_ratio_by_layer`` (null for a
        layer of one expert) and ``regime``: ``"over-dispersed"`` or ``"standard"``.
    """
    ratio_L = entropy_ratio_L(stats, domain_weights=domain_weights)
    known_L = ratio_L[~np.isnan(ratio_L)]
    mean = float(known_L.mean()) if known_L.size else 0.0
    return {
        "entropy_ratio": round(mean, _DIGITS),
        "entropy_ratio_by_layer": [
            None if np.isnan(ratio) else round(float(ratio), 6) for ratio in ratio_L
        ],
        "regime": OVER_DISPERSED if mean > _OVER_DISPERSED_ABOVE else STANDARD,
    }


def shard_warnings(stats: CalibrationStats) -> list[str]:
    """One line for each domain of which only some shards were measured."""
    return [
        f"of domain {domain.name} only shard {', '.join(f'{i}/{n}' for i, n in domain.shards)} was "
        "measured: add the others with 'moeprune merge' and plan again."
        for domain in stats.domains
        if sum(Fraction(1, n) for _, n in domain.shards) != 1
    ]

"""Router entropy of every layer: its mean over tokens, and how much tokens differ.

D domains, L MoE layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeprune.core.pooling import DomainWeights, domain_sums, pool
from moeprune.core.stats import Array, CalibrationStats

_FIELDS = ("entropy_sum", "entropy_sq_sum")


@dataclass(frozen=True, slots=True)
class Entropy:
    """Entropy in bits.

    Attributes:
        mean_L: (L,) float64, mean over the tokens of all domains.
        deviation_L: (L,) float64, standard deviation over these tokens.
        mean_DL: (D, L) float64, of each domain.
        deviation_DL: (D, L) float64.
        most_L: (L,) float64, log2 of the choices a token has: the largest that is possible.
    """

    mean_L: Array
    deviation_L: Array
    mean_DL: Array
    deviation_DL: Array
    most_L: Array

    def ratio(self, mean_XL: Array) -> Array:
        """``mean_XL`` over the maximum; NaN for a layer of one expert, which has no choice."""
        out_XL = np.full(mean_XL.shape, np.nan)
        return np.asarray(np.divide(mean_XL, self.most_L, out=out_XL, where=self.most_L > 0))


def entropy(stats: CalibrationStats, *, domain_weights: DomainWeights = None) -> Entropy:
    """Entropy of every layer, pooled and by domain.

    Raises:
        UsageError, StatsError: see :func:`moeprune.core.pooling.weights_D`.
    """
    passes_L = np.array(stats.model.passes or (1,) * stats.model.num_layers, dtype=np.float64)
    pooled = pool(stats, _FIELDS, domain_weights=domain_weights)
    each = domain_sums(stats, _FIELDS)
    mean_L, square_L = (pooled[name] / passes_L for name in _FIELDS)
    mean_DL, square_DL = (np.stack([sums[name] for sums in each]) / passes_L for name in _FIELDS)
    choices_L = np.array(stats.model.num_experts, dtype=np.float64) + stats.model.idle_experts
    return Entropy(
        mean_L=mean_L,
        deviation_L=_deviation(mean_L, square_L),
        mean_DL=mean_DL,
        deviation_DL=_deviation(mean_DL, square_DL),
        most_L=np.log2(choices_L),
    )


def _deviation(mean: Array, square: Array) -> Array:
    # Rounding may leave a variance of nothing a little below 0.
    return np.asarray(np.sqrt(np.maximum(square - mean**2, 0.0)))

"""What lowering k₁ or raising k₂ does to the gate weights, from calibration stats alone.

Stats hold the sum over tokens of the r-th largest router probability. Its mean is the routing
profile, and m_k = Σ of its first k ranks the mean mass of a token's top k ("Halving the Activated
Experts of a MoE Without Training", sections 2 and 4). The gain of (k₁, k₂) is here

    r = m_k₁ / m_k₂ = Σ_x m_k₁(x) / Σ_x m_k₂(x),

a ratio of means: the tokens' own ratios m_k₁(x) / m_k₂(x), weighed by m_k₂(x). What a model's gate
weights sum to, mean over tokens, is the mean of those ratios. The two differ by the covariance of
m_k₁(x) / m_k₂(x) and m_k₂(x), over the mean of m_k₂(x): see :meth:`RankProfile.slack_L`.

Ranks are by router probability. A router that adds a bias to what it sorts, or looks at some groups
only, chooses others than the likeliest; its own sums then differ, and stats do not say by how much.

L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from moeprune.core.pooling import DomainWeights, domain_sums, pool
from moeprune.core.rows import row_name
from moeprune.core.stats import Array, CalibrationStats
from moeprune.errors import UsageError

_FIELD = "rank_prob_sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """How much router probability each rank of a token's experts has.

    Attributes:
        mean_LE: (L, E) float64, mean over tokens of the r-th largest router probability; falls
            within a row; 0 beyond a narrow layer's experts. A row sums to 1, or to less where
            tokens may choose idle experts.
        num_experts: (L,) experts of each layer.
        names: (L,) of each layer, for messages.
    """

    mean_LE: Array
    num_experts: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def mass_LE(self) -> Array:
        """(L, E) float64: m_1 to m_E, the mean mass of a token's top k; stays beyond a layer's E.

        The router's own factor before a renormalised weight is 1 / m_k.
        """
        return np.asarray(np.cumsum(self.mean_LE, axis=1))

    def top_mass_L(self, k: int) -> Array:
        """(L,) float64: m_k of each layer; of all its experts where it has fewer."""
        return np.asarray(self.mass_LE[:, min(k, self.mean_LE.shape[1]) - 1])

    def gain_L(self, k1: int, k2: int) -> Array:
        """Σ m_k₁ / Σ m_k₂ of each layer: what gate weights sum to, before a family's own scale.

        Args:
            k1: experts that run.
            k2: ranks in the denominator; at least a layer's E: all of them.

        Returns:
            (L,) float64; at most 1 where k₁ ≤ k₂. NaN for a layer without router mass.

        Raises:
            UsageError: a number below 1, or k₁ beyond a layer's experts.
        """
        self._check(k1, k2)
        above_L, below_L = self.top_mass_L(k1), self.top_mass_L(k2)
        out_L = np.full(below_L.shape, np.nan)
        return np.asarray(np.divide(above_L, below_L, out=out_L, where=below_L > 0))

    def slack_L(self, k1: int, k2: int) -> Array:
        """How far :meth:`gain_L` can lie from the mean over tokens of m_k₁(x) / m_k₂(x).

        |mean of ratios − ratio of means| = |Cov(ρ, m_k₂)| / mean m_k₂ ≤ sd ρ · sd m_k₂ / mean m_k₂.
        ρ(x) = m_k₁(x) / m_k₂(x) lies between min(1, k₁/k₂) and max(1, k₁/k₂), so its standard
        deviation is at most half of their distance; m_k₂(x) lies in [k₂/E, 1], so its own is at
        most √((mean − k₂/E)(1 − mean)). Real routers use little of it.

        Returns:
            (L,) float64.
        """
        self._check(k1, k2)
        experts_L = np.array(self.num_experts, dtype=np.float64)
        ranks_L = np.minimum(k2, experts_L)
        mean_L = self.top_mass_L(k2)
        whole_L = self.mean_LE.sum(axis=1)  # 1, or less where tokens choose idle experts
        least_L = np.where(whole_L > 1 - 1e-3, ranks_L / experts_L, 0.0)
        spread_L = np.sqrt(np.clip((mean_L - least_L) * (1 - mean_L), 0, None))
        half_L = np.abs(1 - k1 / ranks_L) / 2
        out_L = np.full(mean_L.shape, np.nan)
        return np.asarray(np.divide(half_L * spread_L, mean_L, out=out_L, where=mean_L > 0))

    def _check(self, k1: int, k2: int) -> None:
        for name, value in (("k1", k1), ("k2", k2)):
            if type(value) is not int or value < 1:
                raise UsageError(f"--{name} cannot be {value!r}: give a whole number from 1.")
        narrowest = min(self.num_experts)
        if k1 > narrowest:
            layer = self.names[self.num_experts.index(narrowest)]
            raise UsageError(f"--k1 {k1}: {layer} has {narrowest} experts. Give at most that many.")


def rank_profile(stats: CalibrationStats, domain_weights: DomainWeights = None) -> RankProfile:
    """The routing profile over all domains.

    Args:
        stats: what calibration measured.
        domain_weights: see :func:`moeprune.core.pooling.weights_D`.

    Raises:
        UsageError, StatsError: see :func:`moeprune.core.pooling.weights_D`.
    """
    return _profile(stats, pool(stats, [_FIELD], domain_weights=domain_weights))


def domain_profiles(stats: CalibrationStats) -> dict[str, RankProfile]:
    """The routing profile of each domain by itself.

    Raises:
        StatsError: a domain has no token.
    """
    each = domain_sums(stats, [_FIELD])
    return {d.name: _profile(stats, sums) for d, sums in zip(stats.domains, each, strict=True)}


def layer_gains(
    stats: CalibrationStats, k1: int, k2: int, domain_weights: DomainWeights = None
) -> Array:
    """Gain of (k₁, k₂) in each layer over all domains; see :meth:`RankProfile.gain_L`."""
    return rank_profile(stats, domain_weights).gain_L(k1, k2)


def _profile(stats: CalibrationStats, sums: Mapping[str, Array]) -> RankProfile:
    # Pooled sums are by the tokens of the text; a layer that runs several times counts them again.
    passes_L = np.array(stats.model.passes or (1,) * stats.model.num_layers, dtype=np.float64)
    return RankProfile(
        mean_LE=np.asarray(sums[_FIELD] / passes_L[:, None]),
        num_experts=stats.model.num_experts,
        names=tuple(row_name(*row) for row in stats.model.rows),
    )

"""Whether domains route differently, or only as any two texts do.

The Jensen-Shannon divergence between two domains' router mass is never 0, because each is measured
on some text only. So it is stated beside a noise floor: the divergence between two halves of the
same domain's documents. Both are taken between halves, so that both hold the same share of chance.

D domains, L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeprune.core.folds import halves_of
from moeprune.core.pooling import domain_mass_DLE
from moeprune.core.stats import Array, CalibrationStats


@dataclass(frozen=True, slots=True)
class Divergence:
    """Jensen-Shannon divergences in bits, 0 to 1.

    Attributes:
        between_DDL: (D, D, L) float64 of two domains, symmetric. The diagonal is NaN.
        noise_DL: (D, L) float64 of two halves of one domain; None where a domain has too few
            documents to be halved, and then ``between_DDL`` is of whole domains.
    """

    between_DDL: Array
    noise_DL: Array | None


def divergence(stats: CalibrationStats) -> Divergence:
    """Divergence of every two domains in every layer, and its noise floor.

    Between domains d and e it is the mean over the splits of the folds in halves A and B of
    ½ JSD(d's A, e's B) + ½ JSD(d's B, e's A); the floor of d is the mean of JSD(d's A, d's B).

    Raises:
        StatsError: a domain has no token.
    """
    splits = [
        [domain_mass_DLE(stats, folds=half) for half in halves] for halves in halves_of(stats)
    ]
    whole_DLE = domain_mass_DLE(stats)
    between_DDL = np.mean(
        [
            (_pairs(one_DLE, other_DLE) + _pairs(other_DLE, one_DLE)) / 2
            for one_DLE, other_DLE in splits or [[whole_DLE, whole_DLE]]
        ],
        axis=0,
    )
    domains = np.arange(len(stats.domains))
    noise_DL = np.array(between_DDL[domains, domains]) if splits else None
    between_DDL[domains, domains] = np.nan
    return Divergence(between_DDL, noise_DL)


def jensen_shannon(one: Array, other: Array) -> Array:
    """Jensen-Shannon divergence over the last axis, in bits.

    Args:
        one: (…, E) float64, sums to 1 over the last axis, or is all 0.
        other: the same.

    Returns:
        (…) float64 in [0, 1]; symmetric; 0 where both are equal.
    """
    both = (one + other) / 2
    bits = (_relative(one, both) + _relative(other, both)) / 2
    return np.asarray(np.clip(bits.sum(axis=-1), 0.0, 1.0))


def _relative(part: Array, whole: Array) -> Array:
    """P log2(p / m), 0 where p is 0."""
    ratio = np.divide(part, whole, out=np.ones(np.broadcast(part, whole).shape), where=part > 0)
    return np.asarray(part * np.log2(ratio))


def _pairs(one_DLE: Array, other_DLE: Array) -> Array:
    return np.stack([jensen_shannon(one_LE[None], other_DLE) for one_LE in one_DLE])

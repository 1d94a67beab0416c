"""One criterion on one set of stats: over all domains, or of each domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from moeprune import criteria, plugins
from moeprune.core.pooling import DomainWeights, domain_sums, pool, row_norm, weights_D
from moeprune.core.stats import Array, CalibrationStats


class Scorer:
    """A criterion with its options, applied to stats.

    Attributes:
        name: the criterion.
        module: its file.
        options: its keyword arguments.
    """

    def __init__(
        self,
        stats: CalibrationStats,
        criterion: str,
        *,
        options: Mapping[str, Any],
        domain_weights: DomainWeights = None,
    ) -> None:
        self.name = criterion
        self.module: ModuleType = plugins.load(criteria, criterion)
        self.options = dict(options)
        self._stats = stats
        self._domain_weights = domain_weights

    def pooled(self, *, folds: Sequence[int] | None = None) -> Array:
        """The criterion of pooled sums: (L, E) float64, as it is.

        Raises:
            UsageError, StatsError: see :func:`moeprune.core.pooling.pool`.
        """
        sums = pool(
            self._stats, self.module.NEEDS, domain_weights=self._domain_weights, folds=folds
        )
        return np.asarray(self.module.score(sums, **self.options))

    def by_domain(self, *, folds: Sequence[int] | None = None) -> Array:
        """The criterion of each domain's own sums: (D, L, E) float64, rows normalised to 1."""
        return row_norm(self._of_domains(folds))

    def shares(self, *, folds: Sequence[int] | None = None) -> Array:
        """The criterion of each domain's own sums as shares: (D, L, E) float64.

        A domain's shares sum to 1 over all its layers and experts; a domain of zeros stays zeros.
        """
        each_DLE = self._of_domains(folds)
        return row_norm(each_DLE.reshape(len(each_DLE), -1)).reshape(each_DLE.shape)

    def averaged(self, *, folds: Sequence[int] | None = None) -> Array:
        """Mean over domains of each domain's criterion, rows normalised to 1: (L, E) float64.

        What the MESA paper calls domain-aware conditioning (appendix H): weights are those of the
        domains, as in :meth:`pooled`.
        """
        return self._mean(self.by_domain(folds=folds), folds)

    def averaged_shares(self, *, folds: Sequence[int] | None = None) -> Array:
        """Mean over domains of :meth:`shares`, by the weights of the domains: (L, E) float64."""
        return self._mean(self.shares(folds=folds), folds)

    def _of_domains(self, folds: Sequence[int] | None) -> Array:
        sums = domain_sums(self._stats, self.module.NEEDS, folds=folds)
        return np.stack([self.module.score(each, **self.options) for each in sums])

    def _mean(self, each_DLE: Array, folds: Sequence[int] | None) -> Array:
        tokens_D = np.array([d.num_tokens(folds=folds) for d in self._stats.domains])
        share_D = weights_D(self._stats, self._domain_weights, folds=folds) * tokens_D
        return np.asarray(np.tensordot(share_D, each_DLE, axes=1))

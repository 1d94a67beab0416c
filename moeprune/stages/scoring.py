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
        sums = domain_sums(self._stats, self.module.NEEDS, folds=folds)
        return np.stack([row_norm(self.module.score(each, **self.options)) for each in sums])

    def averaged(self, *, folds: Sequence[int] | None = None) -> Array:
        """Mean over domains of each domain's criterion, rows normalised to 1: (L, E) float64.

        What the MESA paper calls domain-aware conditioning (appendix H): weights are those of the
        domains, as in :meth:`pooled`.
        """
        tokens_D = np.array([d.num_tokens(folds=folds) for d in self._stats.domains])
        share_D = weights_D(self._stats, self._domain_weights, folds=folds) * tokens_D
        return np.asarray(np.tensordot(share_D, self.by_domain(folds=folds), axes=1))

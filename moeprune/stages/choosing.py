"""A method at work: its criterion and its allocator on one set of stats, for any budget."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from moeprune import allocators, criteria, plugins
from moeprune.core.budget import Budget
from moeprune.core.choice import Outcome
from moeprune.core.methods import DOMAINS, ROWS, SHARES, Method
from moeprune.core.pooling import DomainWeights, counted_D, row_norm
from moeprune.core.stats import Array, CalibrationStats
from moeprune.errors import UsageError
from moeprune.stages.scoring import Scorer


class Chooser:
    """Chooses the experts that stay; of the same budget and folds only once.

    Attributes:
        options: of the criterion and the allocator, defaults filled in.
        allocating: those of the allocator.
        scorer: the criterion.
    """

    def __init__(
        self,
        stats: CalibrationStats,
        name: str,
        method: Method,
        *,
        given: Mapping[str, Any],
        domain_weights: DomainWeights = None,
    ) -> None:
        """Check the options.

        Args:
            stats: the measurements.
            name: what the method is called, for messages.
            method: its parts.
            given: options by name; None or not there = not given.
            domain_weights: see :func:`moeprune.core.pooling.weights_D`. A domain that weighs 0 is
                not protected either.

        Raises:
            UsageError: an option that the method does not have, or a wrong weight.
            StatsError: a domain has no token.
        """
        self._allocator = plugins.load(allocators, method.allocator)
        criterion = plugins.load(criteria, method.criterion)
        scoring, self.allocating = _options(name, given, criterion, self._allocator)
        self.options: dict[str, Any] = {**scoring, **self.allocating}
        self.scorer = Scorer(
            stats, method.criterion, options=scoring, domain_weights=domain_weights
        )
        self._counted_D = counted_D(stats, domain_weights)
        self._pooling = method.pooling
        self._chosen: dict[tuple[Budget, tuple[int, ...] | None], Outcome] = {}

    def __call__(self, budget: Budget, folds: Sequence[int] | None) -> Outcome:
        """The choice from all of the text, or from some folds of it."""
        key = (budget, None if folds is None else tuple(folds))
        if key not in self._chosen:
            self._chosen[key] = self._choose(budget, folds)
        return self._chosen[key]

    def scored(self, folds: Sequence[int] | None) -> Array:
        """What experts are worth to the method, over all domains: (L, E) float64."""
        if self._pooling == DOMAINS:
            return self.scorer.averaged(folds=folds)
        if self._pooling == SHARES:
            return self.scorer.averaged_shares(folds=folds)
        score_LE = self.scorer.pooled(folds=folds)
        return row_norm(score_LE) if self._pooling == ROWS else score_LE

    def by_domain(self, folds: Sequence[int] | None = None) -> Array:
        """What experts are worth to each domain, as the method weighs it: (D, L, E) float64."""
        if self._pooling == SHARES:
            return self.scorer.shares(folds=folds)
        return self.scorer.by_domain(folds=folds)

    def _choose(self, budget: Budget, folds: Sequence[int] | None) -> Outcome:
        allocating = dict(self.allocating)
        if folds is not None:  # how stable a plan is may be asked of a quicker one
            allocating |= getattr(self._allocator, "QUICK", {})
        outcome: Outcome = self._allocator.allocate(
            self.scored(folds),
            worth_DLE=self.by_domain(folds)[self._counted_D],
            budget=budget,
            **allocating,
        )
        return outcome


def _options(
    method: str, given: Mapping[str, Any], scorer: ModuleType, allocator: ModuleType
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keyword arguments of the criterion and of the allocator, defaults filled in."""
    takes = (*scorer.OPTIONS, *allocator.OPTIONS)
    for name, value in given.items():
        if value is not None and name not in takes:
            has = ", ".join(map(_flag, takes)) or "no option of its own"
            raise UsageError(
                f"{_flag(name)} {value} does not go with --method {method}, which has {has}. "
                f"Leave {_flag(name)} out."
            )

    def arguments(names: Sequence[str], function: Callable[..., Any]) -> dict[str, Any]:
        defaults = inspect.signature(function).parameters
        return {
            name: defaults[name].default if given.get(name) is None else given[name]
            for name in names
        }

    return (
        arguments(scorer.OPTIONS, scorer.score),
        arguments(allocator.OPTIONS, allocator.allocate),
    )


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"

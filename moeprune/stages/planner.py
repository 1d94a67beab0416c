"""The last steps of every plan: what was asked for, and what the choice costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moeprune.core.budget import Budget
from moeprune.core.choice import Outcome
from moeprune.core.diagnosis import routing
from moeprune.core.methods import MASS, SIGNAL, Method
from moeprune.core.plan import PrunePlan
from moeprune.core.pooling import DomainWeights
from moeprune.core.quantisation import LayerSchemes
from moeprune.core.stats import CalibrationStats
from moeprune.core.targets import check_target
from moeprune.stages.choosing import Chooser
from moeprune.stages.described import describe
from moeprune.stages.stability import stability

Pick = Callable[[Budget, Sequence[int] | None], Outcome]
"""The experts that stay under a budget, by all of the text or by some folds of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Everything of a plan that does not hang on which experts stay.

    Attributes:
        stats: what calibration measured.
        sha256: of its file, or None.
        domain_weights: of pooled scores.
        options: what was asked for, beside the method's own.
        details: entries of the plan's ``details``.
        target: the runtime that must load the result, or None.
    """

    stats: CalibrationStats
    sha256: str | None
    domain_weights: DomainWeights
    options: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    target: str | None = None

    def plan(
        self,
        outcome: Outcome,
        *,
        method: str,
        chosen: Method,
        choose: Chooser,
        allocation: str,
        budget: Budget | None,
        pick: Pick,
        quantize: LayerSchemes | None = None,
        warnings: Sequence[str] = (),
    ) -> PrunePlan:
        """The plan of a choice.

        Args:
            outcome: the choice.
            method: its name.
            chosen: its parts.
            choose: those at work.
            allocation: how counts of layers were found.
            budget: what it was chosen under; None: no expert leaves.
            pick: chooses again, from some of the text.
            quantize: how the kept experts are to be stored.
            warnings: one line each, beside those of the stats and the target.

        Raises:
            UsageError: the target could not load it.
        """
        stats = self.stats
        own_signal = chosen.option == SIGNAL and chosen.criterion != MASS and budget is not None
        made = describe(
            stats,
            replace(outcome, details={**outcome.details, **self.details}),
            budget=budget,
            stats_sha256=self.sha256,
            method=method,
            domain_weights=self.domain_weights,
            signal=(chosen.criterion, choose.by_domain()) if own_signal else None,
            criterion=chosen.criterion,
            allocation=allocation,
            options={**self.options, **choose.options},
            routing=routing(stats, domain_weights=self.domain_weights),
            stability={}
            if budget is None
            else stability(stats, lambda folds: pick(budget, folds).keep_LE),
            quantize=quantize,
        )
        warning = check_target(self.target, stats.model, [len(ids) for ids in made.keep])
        more = (*warnings, *([warning] if warning else ()))
        return replace(made, warnings=(*made.warnings, *more)) if more else made

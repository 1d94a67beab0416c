"""Method auto: measure what speaks for best, mesa and reap, and let the rule decide.

D domains, L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moeprune.core.agreement import agreement, overlap_by_chance
from moeprune.core.budget import Budget
from moeprune.core.choice import Mask, domain_loss, jaccard, real_LE
from moeprune.core.diagnosis import routing
from moeprune.core.folds import halves_of
from moeprune.core.methods import AUTO, MASS
from moeprune.core.methods import method as find_method
from moeprune.core.plan import PrunePlan
from moeprune.core.pooling import DomainWeights, counted_D, domain_mass_DLE
from moeprune.core.predicted import predictable
from moeprune.core.rounding import rounded
from moeprune.core.stats import CalibrationStats
from moeprune.core.verdict import MESA, REAP, Evidence, Verdict, verdict
from moeprune.errors import UsageError
from moeprune.stages.choosing import Chooser
from moeprune.stages.stability import stability

_DIGITS = 12  # the last bits of a sum depend on the machine; a plan should not

Choose = Callable[[Sequence[int] | None], Mask]


@dataclass(frozen=True, slots=True)
class Decision:
    """What auto chose.

    Attributes:
        verdict: the method and the reasons.
        evidence: what it rests on.
    """

    verdict: Verdict
    evidence: Evidence

    @property
    def method(self) -> str:
        """``"best"``, ``"mesa"`` or ``"reap"``."""
        return self.verdict.method

    def explain(self, made: PrunePlan) -> PrunePlan:
        """The plan of the chosen method, with the reasons and the evidence in it."""
        return replace(
            made,
            options={**made.options, "method": AUTO},
            # What was said of the allocation stands before the verdict, which is the last.
            reasons=(*self.verdict.reasons[:-1], *made.reasons, self.verdict.reasons[-1]),
            details={**made.details, AUTO: self.evidence.to_json()},
        )


def decide(
    stats: CalibrationStats,
    *,
    budget: Budget,
    given: Mapping[str, object],
    domain_weights: DomainWeights = None,
    without_best: bool = False,
) -> Decision:
    """Best, mesa or reap for this model, these texts and this budget.

    Args:
        stats: the measurements.
        budget: how many may leave where.
        given: options of single methods, by name; all must be None.
        domain_weights: see :func:`moeprune.core.pooling.weights_D`.
        without_best: best cannot be asked for what is wanted.

    Raises:
        UsageError: an option of a single method; or see
            :func:`moeprune.core.pooling.weights_D`.
        StatsError: a domain has no token.
    """
    for name, value in given.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} {value} does not go with --method {AUTO}, which may choose a method "
                f"without it. Leave {option} out, or name the method."
            )
    seen = measure(stats, budget=budget, domain_weights=domain_weights)
    if predictable(stats) and not without_best:
        seen = replace(seen, loss=True)
    return Decision(verdict(seen), seen)


def measure(
    stats: CalibrationStats, *, budget: Budget, domain_weights: DomainWeights = None
) -> Evidence:
    """What the rule looks at."""
    choosers = _choosers(stats, budget, domain_weights)
    real = real_LE(stats.model.num_experts)
    removed = {name: real & ~choose(None) for name, choose in choosers.items()}
    used = np.flatnonzero(counted_D(stats, domain_weights))
    all_DLE = domain_mass_DLE(stats)[used]
    losses = {name: domain_loss(all_DLE, ~removed[name]) for name in (MESA, REAP)}
    worst = {name: int(np.argmax(loss_D)) for name, loss_D in losses.items()}
    regime = routing(stats, domain_weights=domain_weights)
    by_layer = [ratio for ratio in regime["entropy_ratio_by_layer"] if ratio is not None] or [0.0]
    experts = stats.model.num_experts
    gains, of_halves = [], []
    for one, other in halves_of(stats):
        reap_removed = [real & ~choosers[REAP](half) for half in (one, other)]
        of_halves.append(agreement(reap_removed[0], reap_removed[1], experts))
        for half, rest in ((one, other), (other, one)):
            mass_DLE = domain_mass_DLE(stats, folds=rest)[used]
            saved = [domain_loss(mass_DLE, choosers[name](half)).max() for name in (MASS, MESA)]
            gains.append(saved[0] - saved[1])
    return Evidence(
        regime=regime["regime"],
        entropy_ratio=regime["entropy_ratio"],
        entropy_ratio_lowest=min(by_layer),
        entropy_ratio_highest=max(by_layer),
        domains=len(used),
        stability={name: stability(stats, choosers[name])["jaccard"] for name in (MESA, REAP)},
        overlap={
            name: round(jaccard(removed[name], removed[REAP]), _DIGITS) for name in (MASS, MESA)
        },
        overlap_by_chance=round(overlap_by_chance(removed[MESA], removed[REAP], experts), _DIGITS),
        agreement=round(agreement(removed[MESA], removed[REAP], experts), _DIGITS),
        agreement_of_halves=_mean(of_halves),
        gain=_mean(gains),
        gain_deviation=round(float(np.std(gains)), _DIGITS) if gains else None,
        worst_domain={name: stats.domains[used[row]].name for name, row in worst.items()},
        worst_domain_loss={name: rounded(float(losses[name][row])) for name, row in worst.items()},
    )


def _choosers(
    stats: CalibrationStats, budget: Budget, domain_weights: DomainWeights
) -> dict[str, Choose]:
    """The candidates as their methods make them, and ranking by mass: mesa's first step."""

    def chooser(name: str) -> Choose:
        method = find_method(name)
        choose = Chooser(stats, name, method, given={}, domain_weights=domain_weights)
        return lambda folds: choose(budget, folds).keep_LE

    return {MESA: chooser("mesa"), REAP: chooser("reap"), MASS: chooser("rm-uniform")}


def _mean(values: Sequence[float]) -> float | None:
    return round(float(np.mean(values)), _DIGITS) if values else None

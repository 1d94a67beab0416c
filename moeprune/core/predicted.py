"""What a plan predicts of the loss: from the sums of a loss that the stats hold.

D domains, L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moeprune.core.choice import Mask
from moeprune.core.pooling import DomainWeights, counted_D
from moeprune.core.rounding import rounded
from moeprune.core.stats import CalibrationStats
from moeprune.errors import StatsError


@dataclass(frozen=True, slots=True)
class Predicted:
    """The change of the loss.

    Attributes:
        domains: domain -> nats per target token, not negative; empty: the stats do not say.
        worst: the domain with the largest, of those that count; None: the stats do not say.
        of: what it rests on: ``loss`` (of ``"completion"`` or ``"all"`` tokens) and the
            ``temperature`` at which gradients were taken.
    """

    domains: Mapping[str, float] = field(default_factory=dict)
    worst: str | None = None
    of: Mapping[str, Any] = field(default_factory=dict)


def predictable(stats: CalibrationStats) -> bool:
    """Whether the stats hold a loss, of every domain."""
    return stats.has_loss and all(domain.total("loss_tokens") for domain in stats.domains)


def predicted(
    stats: CalibrationStats, keep_LE: Mask, *, domain_weights: DomainWeights = None
) -> Predicted:
    """The change of the loss of each domain, where experts leave.

    To second order, with the Fisher information in the place of the Hessian matrix and without
    what experts that leave together do to each other: the sum over the experts that leave of
    ½ · T² · ``fisher_cf_sum`` / ``loss_tokens``, where gradients are of the loss at temperature T
    (which divides them by T). It ranks plans; it is no forecast of the number.

    Args:
        stats: what calibration measured.
        keep_LE: (L, E) bool, True = the expert stays.
        domain_weights: a domain that weighs 0 is stated too, but it is not the worst.

    Returns:
        Nothing, where the stats were made without ``--loss-aware`` or a domain has no target token.

    Raises:
        StatsError: the stats state a temperature that is none.
    """
    if not predictable(stats):
        return Predicted()
    targets_D = np.array([domain.total("loss_tokens") for domain in stats.domains])
    gone_D = np.array([domain.total("fisher_cf_sum")[~keep_LE].sum() for domain in stats.domains])
    temperature = _temperature(stats)
    nats_D = 0.5 * temperature**2 * gone_D / targets_D
    worst = int(np.argmax(np.where(counted_D(stats, domain_weights), nats_D, -1.0)))
    of = {d.name: rounded(float(nats)) for d, nats in zip(stats.domains, nats_D, strict=True)}
    loss = {"loss": stats.provenance.get("loss"), "temperature": temperature}
    return Predicted(of, stats.domains[worst].name, loss)


def _temperature(stats: CalibrationStats) -> float:
    """At which gradients of the loss were taken; stats that do not say it: of the loss itself."""
    value = stats.provenance.get("loss_temperature", 1.0)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise StatsError(
            f"the stats state a loss_temperature of {value!r}, which is no number above 0; the "
            "file is damaged. Calibrate again."
        )
    return float(value)

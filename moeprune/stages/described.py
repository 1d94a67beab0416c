"""A choice of experts as a plan: what it costs each domain, how many bytes it frees, warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moeprune.allocators._bound import lower_bound
from moeprune.core.budget import Budget
from moeprune.core.choice import Mask, Outcome, domain_loss
from moeprune.core.diagnosis import STANDARD, shard_warnings
from moeprune.core.plan import PrunePlan
from moeprune.core.plan_edits import kept_sha256
from moeprune.core.pooling import DomainWeights, counted_D, domain_mass_DLE
from moeprune.core.predicted import predicted
from moeprune.core.quantisation import LayerSchemes
from moeprune.core.rounding import rounded
from moeprune.core.stats import Array, CalibrationStats
from moeprune.core.unseen import unseen, unseen_warnings


def describe(
    stats: CalibrationStats,
    outcome: Outcome,
    *,
    budget: Budget | None,
    routing: Mapping[str, Any],
    method: str,
    domain_weights: DomainWeights = None,
    signal: tuple[str, Array] | None = None,
    quantize: LayerSchemes | None = None,
    **known: Any,
) -> PrunePlan:
    """The plan of a choice of experts, with what it costs.

    Args:
        stats: what calibration measured.
        outcome: the choice.
        budget: what it was chosen under; the lower bound is that of all plans under it that remove
            as many experts. For counts that a search found, the global budget. None: no expert
            leaves, and nothing is lost by that.
        routing: the plan's entry of that name.
        method: by which it was made.
        domain_weights: what pooled scores were made with. What a domain that weighs 0 loses is
            stated too, but it is not the worst, and the lower bound is not of it.
        signal: the criterion by which losses were weighed, where that is not router mass, and
            (D, L, E) what it says of each domain.
        quantize: how the kept experts are to be stored.
        **known: further entries of the plan.
    """
    model, keep_LE = stats.model, outcome.keep_LE
    mass_DLE = domain_mass_DLE(stats)
    used_D = counted_D(stats, domain_weights)
    losses: dict[str, Any] = {}
    more: dict[str, Any] = {}
    if budget is not None:
        losses = _losses(stats, mass_DLE, keep_LE, used_D)
        bound = lower_bound(mass_DLE[used_D], budget, total=_num_removed(stats, keep_LE))
        losses["lower_bound"] = bound
        change = predicted(stats, keep_LE, domain_weights=domain_weights)
        losses |= {"predicted": change.domains, "worst_predicted": change.worst}
        more = {"predicted": dict(change.of)} if change.of else {}
    details = {**outcome.details, **more}
    if signal is not None:
        name, worth_DLE = signal
        details["signal"] = {"name": name, **_losses(stats, worth_DLE, keep_LE, used_D)}
    if idle := unseen(stats, domain_weights=domain_weights):
        details["unseen"] = idle
    leave_L = np.array(model.num_experts) - keep_LE.sum(axis=1)
    freed = sum(int(leave) * size for leave, size in zip(leave_L, model.expert_bytes, strict=True))
    warnings = [*shard_warnings(stats), *unseen_warnings(stats, domain_weights=domain_weights)]
    if method in ("mesa", "mesa-exact") and routing["regime"] == STANDARD:
        warnings.append(
            f"the routing is not over-dispersed (entropy ratio {routing['entropy_ratio']:.2f}, "
            "mesa is meant for more than 0.85): its paper saw it do worse than reap there, so "
            "compare with --method reap."
        )
    keep = tuple(tuple(int(e) for e in np.flatnonzero(keep_E)) for keep_E in keep_LE)
    return PrunePlan(
        model_name=model.name,
        model_fingerprint=model.fingerprint,
        model_type=model.model_type,
        top_k=model.top_k,
        num_groups=model.num_groups,
        top_groups=model.top_groups,
        layer_ids=model.layer_ids,
        sets=model.sets,
        num_experts=model.num_experts,
        keep=keep,
        kept_sha256=kept_sha256(
            model.layer_ids, model.sets, keep, quantize.schemes if quantize else None
        ),
        quantize=quantize,
        method=method,
        **losses,
        routing=routing,
        size={"bytes_before": model.total_bytes, "bytes_after": model.total_bytes - freed},
        warnings=tuple(warnings),
        details=details,
        **known,
    )


def _num_removed(stats: CalibrationStats, keep_LE: Mask) -> int:
    return sum(stats.model.num_experts) - int(np.count_nonzero(keep_LE))


def _losses(
    stats: CalibrationStats, worth_DLE: Array, keep_LE: Mask, used_D: Mask
) -> dict[str, Any]:
    """What each domain loses, by name, and the domain that loses most of those that count."""
    loss_D = domain_loss(worth_DLE, keep_LE)
    worst = int(np.argmax(np.where(used_D, loss_D, -1.0)))
    loss = {
        domain.name: rounded(float(share))
        for domain, share in zip(stats.domains, loss_D, strict=True)
    }
    return {
        "domain_loss": loss,
        "worst_domain": stats.domains[worst].name,
        "worst_domain_loss": loss[stats.domains[worst].name],
    }

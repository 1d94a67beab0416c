"""A choice of experts as a plan: what it costs each domain, how many bytes it frees, warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moeprune.core.choice import Outcome, domain_loss
from moeprune.core.diagnosis import STANDARD, shard_warnings, unseen_warnings
from moeprune.core.plan import PrunePlan
from moeprune.core.pooling import domain_mass_DLE
from moeprune.core.stats import CalibrationStats

DIGITS = 12  # the last bits of a sum depend on the machine; a plan should not


def describe(
    stats: CalibrationStats,
    outcome: Outcome,
    *,
    routing: Mapping[str, Any],
    method: str,
    **known: Any,
) -> PrunePlan:
    """The plan of a choice of experts, with what it costs."""
    model, keep_LE = stats.model, outcome.keep_LE
    loss_D = domain_loss(domain_mass_DLE(stats), keep_LE)
    worst = int(np.argmax(loss_D))
    loss = {
        domain.name: round(float(share), DIGITS)
        for domain, share in zip(stats.domains, loss_D, strict=True)
    }
    leave_L = np.array(model.num_experts) - keep_LE.sum(axis=1)
    freed = sum(int(leave) * size for leave, size in zip(leave_L, model.expert_bytes, strict=True))
    warnings = [*shard_warnings(stats), *unseen_warnings(stats)]
    if method == "mesa" and routing["regime"] == STANDARD:
        warnings.append(
            f"the routing is not over-dispersed (entropy ratio {routing['entropy_ratio']:.2f}, "
            "mesa is meant for more than 0.85): its paper saw it do worse than reap there, so "
            "compare with --method reap."
        )
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
        keep=tuple(tuple(int(e) for e in np.flatnonzero(keep_E)) for keep_E in keep_LE),
        method=method,
        domain_loss=loss,
        worst_domain=stats.domains[worst].name,
        worst_domain_loss=loss[stats.domains[worst].name],
        routing=routing,
        size={"bytes_before": model.total_bytes, "bytes_after": model.total_bytes - freed},
        warnings=tuple(warnings),
        details=dict(outcome.details),
        **known,
    )

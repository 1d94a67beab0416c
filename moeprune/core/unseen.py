"""Experts that no token was routed to: nothing was measured of them, and they leave first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moeprune.core.choice import real_LE
from moeprune.core.facts import ModelFacts
from moeprune.core.pooling import DomainWeights, weights_D
from moeprune.core.rows import row_name
from moeprune.core.stats import Array, CalibrationStats, DomainStats

# A layer with more unseen experts than this share was calibrated on too little text.
_UNSEEN_SHARE = 0.05


def reached(facts: ModelFacts, domains: Sequence[DomainStats]) -> dict[str, Any]:
    """How many tokens experts received, over all domains.

    Returns:
        ``unseen``: experts that no token was routed to; ``tokens_per_expert``: the ``least`` and
        the ``median``.
    """
    return reached_counts(facts, [domain.total("count") for domain in domains])


def reached_counts(facts: ModelFacts, count_DLE: Sequence[Array]) -> dict[str, Any]:
    """The same of each domain's counts, (L, E)."""
    counts = np.sum(count_DLE, axis=0)[real_LE(facts.num_experts)]
    return {
        "unseen": int(np.count_nonzero(counts == 0)),
        "tokens_per_expert": {"least": int(counts.min()), "median": int(np.median(counts))},
    }


def unseen(stats: CalibrationStats, *, domain_weights: DomainWeights = None) -> dict[str, Any]:
    """How many experts saw no token, and where.

    Args:
        stats: the domains.
        domain_weights: what a domain that weighs 0 saw does not count, as its sums do not.

    Returns:
        {} where every domain's text reached every expert, else ``experts``: how many no text
        reached; ``layers``: their ids, by name of the layer; ``domains``: how many the text of one
        domain did not reach, by domain.

    Raises:
        UsageError, StatsError: see :func:`moeprune.core.pooling.weights_D`.
    """
    idle_LE = _idle_LE(stats, domain_weights)
    domains = {
        domain.name: int(np.count_nonzero(_real(stats) & (domain.total("count") == 0)))
        for domain in stats.domains
    }
    if not any(domains.values()):
        return {}
    layers = {
        _name(stats, row): [int(expert) for expert in np.flatnonzero(idle_E)]
        for row, idle_E in enumerate(idle_LE)
        if idle_E.any()
    }
    return {
        "experts": int(np.count_nonzero(idle_LE)),
        "layers": layers,
        "domains": {name: count for name, count in domains.items() if count},
    }


def unseen_warnings(stats: CalibrationStats, *, domain_weights: DomainWeights = None) -> list[str]:
    """One line if experts saw no token at all in more than a few places of a layer, else none.

    Args:
        stats: the domains.
        domain_weights: see :func:`unseen`.
    """
    idle_LE = _idle_LE(stats, domain_weights)
    thin = [
        _name(stats, row)
        for row, experts in enumerate(stats.model.num_experts)
        if np.count_nonzero(idle_LE[row]) > _UNSEEN_SHARE * experts
    ]
    if not thin:
        return []
    total = sum(stats.model.num_experts)
    shown = ", ".join(thin[:5]) + (", …" if len(thin) > 5 else "")
    left_out = not weights_D(stats, domain_weights).all()
    of = " of a domain that weighs more than 0" if left_out else ""
    return [
        f"{np.count_nonzero(idle_LE)} of {total} experts saw no token{of} (more than "
        f"{_UNSEEN_SHARE:.0%} of layer {shown}): calibrate on more text before trusting which of "
        "them leave."
    ]


def _idle_LE(stats: CalibrationStats, domain_weights: DomainWeights) -> Array:
    """(L, E) bool, True for an expert that no text with a weight reached."""
    seen_LE = np.zeros((stats.model.num_layers, stats.model.width), dtype=np.bool_)
    for domain, weight in zip(stats.domains, weights_D(stats, domain_weights), strict=True):
        if weight > 0:
            seen_LE |= domain.total("count") > 0
    return np.asarray(_real(stats) & ~seen_LE)


def _real(stats: CalibrationStats) -> Array:
    return real_LE(stats.model.num_experts)


def _name(stats: CalibrationStats, row: int) -> str:
    return row_name(*stats.model.rows[row]).removeprefix("layer ")

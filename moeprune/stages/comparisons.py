"""What an analysis says of domains, kinds of layers and plans beside each other, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from moeprune.analysis.divergence import divergence as measure_divergence
from moeprune.analysis.entropy import entropy as measure_entropy
from moeprune.analysis.overlap import expected_overlap, overlap_L, top_mask
from moeprune.core.agreement import agreement, overlap_by_chance
from moeprune.core.choice import jaccard, real_LE
from moeprune.core.folds import halves_of
from moeprune.core.plan import PrunePlan
from moeprune.core.pooling import domain_mass_DLE
from moeprune.core.predicted import predicted
from moeprune.core.proven import weightless
from moeprune.core.stats import CalibrationStats
from moeprune.stages.findings import mean_of

_TOP_SHARES = (0.125, 0.25, 0.5, 0.75)  # of a layer's experts


def divergence(stats: CalibrationStats) -> dict[str, Any]:
    """Between domains, against the noise floor; means over pairs by layer, over layers by pair."""
    found = measure_divergence(stats)
    names = [domain.name for domain in stats.domains]
    pairs = list(combinations(range(len(names)), 2))
    between_PL = np.array([found.between_DDL[one, two] for one, two in pairs])
    noise_L = None if found.noise_DL is None else found.noise_DL.mean(axis=0)
    return {
        "between": between_PL.mean(axis=0).tolist() if pairs else None,
        "between_least": between_PL.min(axis=0).tolist() if pairs else None,
        "between_most": between_PL.max(axis=0).tolist() if pairs else None,
        "noise": None if noise_L is None else noise_L.tolist(),
        "noise_by_domain": None
        if found.noise_DL is None
        else dict(zip(names, found.noise_DL.mean(axis=1).tolist(), strict=True)),
        "pairs": [
            {"domains": [names[one], names[two]], "between": float(between_L.mean())}
            for (one, two), between_L in zip(pairs, between_PL, strict=True)
        ],
        "layers_above_noise": None
        if noise_L is None or not pairs
        else int(np.count_nonzero(between_PL.mean(axis=0) > noise_L)),
    }


def overlap(stats: CalibrationStats) -> list[dict[str, Any]]:
    """Overlap of the domains' top experts, for several sizes, against chance."""
    experts = stats.model.num_experts
    mass_DLE = domain_mass_DLE(stats)
    names = [domain.name for domain in stats.domains]
    found = []
    sizes = [("top_k", [stats.model.top_k] * len(experts))]
    sizes += [(str(share), [max(1, int(share * n)) for n in experts]) for share in _TOP_SHARES]
    for size, top_L in sizes:
        top_DLE = top_mask(mass_DLE, top_L, experts)
        halves = [
            overlap_L(*(top_mask(domain_mass_DLE(stats, folds=half), top_L, experts) for half in s))
            for s in halves_of(stats)
        ]
        pairs = [
            {
                "domains": [names[one], names[two]],
                "jaccard": float(overlap_L(top_DLE[one], top_DLE[two]).mean()),
            }
            for one, two in combinations(range(len(names)), 2)
        ]
        chance = [expected_overlap(n, top) for n, top in zip(experts, top_L, strict=True)]
        found.append(
            {
                "size": size,
                "top": top_L,
                "pairs": pairs,
                "mean": mean_of([pair["jaccard"] for pair in pairs]) if pairs else None,
                "chance": mean_of(chance),
                "same_domain": mean_of(np.array(halves)) if halves else None,
            }
        )
    return found


def attention(stats: CalibrationStats) -> dict[str, Any] | None:
    """Means over the layers of each kind of attention; None where the stats do not state it."""
    kinds = stats.provenance.get("attention")
    if not isinstance(kinds, list) or len(kinds) != stats.model.num_layers:
        return None
    found = measure_entropy(stats)
    ratio_L = found.ratio(found.mean_L)
    spread = measure_divergence(stats)
    pairs = list(combinations(range(len(stats.domains)), 2))
    between_L = np.mean([spread.between_DDL[pair] for pair in pairs], axis=0) if pairs else None
    groups = {}
    for kind in sorted(set(map(str, kinds))):
        rows = [row for row, own in enumerate(kinds) if str(own) == kind]
        groups[kind] = {
            "layers": [stats.model.layer_ids[row] for row in rows],
            "entropy_ratio": mean_of(ratio_L[rows]),
            "deviation": mean_of(found.deviation_L[rows]),
            "between": None if between_L is None else mean_of(between_L[rows]),
            "noise": None if spread.noise_DL is None else mean_of(spread.noise_DL[:, rows]),
        }
    return groups


def _predicted(stats: CalibrationStats, plan: PrunePlan) -> dict[str, Any] | None:
    """What the stats predict of a plan, however and from whatever it was made."""
    idle = [domain.name for domain in stats.domains if domain.name in weightless(plan)]
    if len(idle) == len(stats.domains):
        idle = []  # made from stats of other domains
    change = predicted(stats, plan.keep_mask_LE(), domain_weights=dict.fromkeys(idle, 0.0))
    if change.worst is None:
        return None
    return {"worst": change.worst, "domains": dict(change.domains)}


def plans(stats: CalibrationStats, named: Mapping[str, PrunePlan]) -> dict[str, Any] | None:
    """What every two plans share of what leaves, what chance would, and what each predicts."""
    if not named:
        return None
    removed = {
        name: real_LE(plan.num_experts) & ~plan.keep_mask_LE() for name, plan in named.items()
    }
    pairs = []
    for one, two in combinations(named, 2):
        both = (removed[one], removed[two])
        experts = named[one].num_experts
        pairs.append(
            {
                "plans": [one, two],
                "jaccard": jaccard(*both),
                "chance": overlap_by_chance(*both, experts),
                "agreement": agreement(*both, experts),
            }
        )
    of_each = {}
    for name, plan in named.items():
        known = plan.without_stale()  # an edited plan still states what it lost before
        of_each[name] = {
            "method": plan.method,
            "removed": plan.num_removed,
            "edited": plan.edited,
            "worst_domain": known.worst_domain,
            "worst_domain_loss": known.worst_domain_loss,
            "predicted": _predicted(stats, plan),
        }
    return {"plans": of_each, "pairs": pairs}

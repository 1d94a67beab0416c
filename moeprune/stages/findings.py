"""What an analysis says of one model's routing, as plain JSON values.

Lists by layer have the order of ``layers``; lists by expert or rank have the length of the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moeprune.analysis import regime as regimes
from moeprune.analysis.entropy import entropy as measure_entropy
from moeprune.analysis.mass import cumulative_LE, expert_mass_LE, grid, rank_mass_LE
from moeprune.core.diagnosis import routing
from moeprune.core.pooling import domain_mass_DLE
from moeprune.core.stats import Array, CalibrationStats


def model(stats: CalibrationStats) -> dict[str, Any]:
    """Which model."""
    facts = stats.model
    return {
        "name": facts.name,
        "fingerprint": facts.fingerprint,
        "model_type": facts.model_type,
        "top_k": facts.top_k,
        "idle_experts": facts.idle_experts,
    }


def layers(stats: CalibrationStats) -> list[dict[str, Any]]:
    """The MoE layers, in the order of every list by layer."""
    return [
        {"layer": layer} | ({"set": name} if name else {}) | {"num_experts": experts}
        for (layer, name), experts in zip(stats.model.rows, stats.model.num_experts, strict=True)
    ]


def entropy(stats: CalibrationStats) -> dict[str, Any]:
    """Bits and their share of the maximum, pooled and by domain."""
    found = measure_entropy(stats)
    whole = routing(stats)
    return {
        "ratio": whole["entropy_ratio"],
        "regime": whole["regime"],
        "mean": found.mean_L.tolist(),
        "deviation": found.deviation_L.tolist(),
        "most": found.most_L.tolist(),
        "ratio_by_layer": found.ratio(found.mean_L).tolist(),
        "by_domain": {
            domain.name: {
                "mean": mean_L.tolist(),
                "deviation": deviation_L.tolist(),
                "ratio": mean_of(found.ratio(mean_L)),
            }
            for domain, mean_L, deviation_L in zip(
                stats.domains, found.mean_DL, found.deviation_DL, strict=True
            )
        },
    }


def mass(stats: CalibrationStats) -> dict[str, Any]:
    """Mass by rank within a token, and by expert over all tokens; what the first n of them hold."""
    experts = stats.model.num_experts
    ranks_LE, experts_LE = rank_mass_LE(stats), expert_mass_LE(stats)
    numbers = grid(stats.model.width, stats.model.top_k)
    return {
        "top": list(numbers),
        "rank_mass": _ragged(ranks_LE, experts),
        "top_ranks": _band(cumulative_LE(ranks_LE), numbers),
        "expert_mass": _ragged(experts_LE, experts),
        "top_experts": _band(cumulative_LE(experts_LE), numbers),
    }


def regime(stats: CalibrationStats, *, seed: int) -> dict[str, Any]:
    """Appendix F: the simulated curve, and where this model lies."""
    mass_DLE = domain_mass_DLE(stats)
    own = regimes.global_tau(mass_DLE.mean(axis=0), mass_DLE, stats.model.num_experts)
    return {
        "seed": seed,
        "simulated": [
            {"entropy_ratio": point.entropy_ratio, "tau": point.tau}
            for point in regimes.simulate(seed=seed)
        ],
        "measured": {"entropy_ratio": routing(stats)["entropy_ratio"], "tau": own},
    }


def mean_of(values: Any) -> float:
    """Mean of what is known; NaN of nothing."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else float("nan")


def _band(share_LE: Array, numbers: Sequence[int]) -> dict[str, list[float]]:
    """Least, mean and most over layers of what the first n hold."""
    at_LN = share_LE[:, [number - 1 for number in numbers]]
    return {
        "least": at_LN.min(axis=0).tolist(),
        "mean": at_LN.mean(axis=0).tolist(),
        "most": at_LN.max(axis=0).tolist(),
    }


def _ragged(values_LE: Array, num_experts: Sequence[int]) -> list[list[float]]:
    return [row[:count].tolist() for row, count in zip(values_LE, num_experts, strict=True)]

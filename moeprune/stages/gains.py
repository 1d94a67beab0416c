"""What an analysis says of k₁ and k₂: the routing profile, and the gains that follow from it.

No model is run: what a policy really does to a token's weights, ``eval`` and ``scan`` measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moeprune.core.gains import RankProfile, domain_profiles, rank_profile
from moeprune.core.stats import CalibrationStats
from moeprune.errors import UsageError

ALL = "E"
Rank = int | str


def routing_profile(
    stats: CalibrationStats, *, k1: Sequence[int] = (), k2: Sequence[Rank] = ()
) -> dict[str, Any]:
    """Mean router probability by rank, and the gain of each k₁ with each k₂.

    Args:
        stats: what calibration measured.
        k1: experts that run; none: half, three quarters and all of the model's own.
        k2: ranks in the denominator, or ``"E"`` for all; none: of half of the model's own, one
            more, its own, twice that and all, what is above k₁.

    Raises:
        UsageError: one of the two without the other, or numbers that no layer has.
        StatsError: a domain has no token.
    """
    if bool(k1) != bool(k2):
        given, other = ("k1", "k2") if k1 else ("k2", "k1")
        raise UsageError(
            f"--{given} without --{other}: a gain is that of k1 experts over the mass of the top "
            "k2. Give both, e.g. --k1 4,6 --k2 8,16,E."
        )
    whole, each = rank_profile(stats), domain_profiles(stats)
    width, top_k = stats.model.width, stats.model.top_k
    pairs = [(one, _rank(two, width)) for one in k1 for two in k2] or _pairs(top_k, width)
    return {
        "mean": _ragged(whole, whole.mean_LE),
        "cumulative": _ragged(whole, whole.mass_LE),
        "by_choice": stats.model.num_groups == 1,
        "native": _native(whole, top_k, stats.model.native_k2),
        "gains": [_gain(whole, each, one, two) for one, two in dict.fromkeys(pairs)],
    }


def _native(whole: RankProfile, top_k: int, k2: int) -> dict[str, Any] | None:
    """What the model does by itself; None where the stats do not say it."""
    if not k2:
        return None
    gain_L = whole.gain_L(top_k, k2)
    return {
        "k1": top_k,
        "k2": k2,
        "by_layer": gain_L.tolist(),
        "amplification": (gain_L / whole.top_mass_L(top_k)).tolist(),
    }


def _gain(whole: RankProfile, each: dict[str, RankProfile], k1: int, k2: int) -> dict[str, Any]:
    gain_L = whole.gain_L(k1, k2)
    return {
        "k1": k1,
        "k2": k2,
        "mean": float(gain_L.mean()),
        "by_layer": gain_L.tolist(),
        "slack": whole.slack_L(k1, k2).tolist(),
        "by_domain": {name: own.gain_L(k1, k2).tolist() for name, own in each.items()},
    }


def _pairs(top_k: int, width: int) -> list[tuple[int, int]]:
    """The model's own number of experts, and fewer; with the denominators that are worth a look."""
    half = (top_k + 1) // 2
    ones = sorted({half, (3 * top_k + 3) // 4, top_k})
    twos = sorted({min(two, width) for two in (half, half + 1, top_k, 2 * top_k, width)})
    # At k₂ = k₁ the gain is 1, by definition.
    found = [(one, two) for one in ones for two in twos if two > one]
    return found or [(top_k, width)]


def _rank(k2: Rank, width: int) -> int:
    if k2 == ALL:
        return width
    if type(k2) is not int:
        raise UsageError(f"--k2 cannot be {k2!r}: give a whole number from 1, or {ALL} for all.")
    return k2


def _ragged(profile: RankProfile, values_LE: Any) -> list[list[float]]:
    rows = zip(values_LE, profile.num_experts, strict=True)
    return [row[:count].tolist() for row, count in rows]

"""How much of a plan other text would have chosen too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from moeprune.core.choice import Mask, jaccard, real_LE
from moeprune.core.folds import SPLITS, has_text
from moeprune.core.stats import CalibrationStats

_DIGITS = 12  # the last bits of a mean depend on the machine


def stability(
    stats: CalibrationStats, choose: Callable[[Sequence[int] | None], Mask]
) -> dict[str, Any]:
    """Overlap of the plans that two halves of the text give: 1 = any text would give this plan."""
    real = real_LE(stats.model.num_experts)
    splits: list[float | None] = []
    for halves in SPLITS:
        if all(has_text(stats, half) for half in halves):
            one_LE, other_LE = (real & ~choose(half) for half in halves)
            splits.append(round(jaccard(one_LE, other_LE), _DIGITS))
        else:
            splits.append(None)  # too few documents: a half has no text of some domain
    measured = [overlap for overlap in splits if overlap is not None]
    mean = round(sum(measured) / len(measured), _DIGITS) if measured else None
    return {"jaccard": mean, "splits": splits}

"""Random: the control that every criterion must beat. Looks at no statistic."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from moeprune.core.stats import Array
from moeprune.errors import UsageError

NEEDS = ("count",)
OPTIONS = ("seed",)

_SEEDS = 2**32


def score(sums: Mapping[str, Array], *, seed: int = 0) -> Array:
    """Uniform random numbers.

    Args:
        sums: pooled ``count``, of which only the shape is read.
        seed: 0 to 2³² - 1; another seed, another plan.

    Returns:
        (L, E) float64 in [0, 1).

    Raises:
        UsageError: a seed out of range.
    """
    if not 0 <= seed < _SEEDS:
        raise UsageError(f"--seed {seed} is out of range; use 0 to {_SEEDS - 1}.")
    # RandomState, because numpy promises its stream for ever; a Generator's may change.
    return np.random.RandomState(seed).random_sample(sums["count"].shape)

"""Several variants against one baseline: p-values corrected for having looked more than once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from moeprune.core.stats import Array
from moeprune.errors import UsageError
from moeprune.evaluate.paired.checks import finite


def holm(p_values: ArrayLike) -> Array:
    """Holm's step-down adjusted p-values: they hold the chance of any false finding at the level.

    Sorted p_(1) <= … <= p_(m) become max over j <= i of min(1, (m - j + 1) · p_(j)). No assumption
    on how the tests depend on each other, and never weaker than Bonferroni's m · p.
    Source: Holm, Scand. J. Statist. 6:65 (1979).

    Args:
        p_values: (M,) float in [0, 1], one a comparison; may be empty.

    Returns:
        (M,) float64 in [0, 1], in the order of the input, none below its own p.

    Raises:
        UsageError: a value that is no probability.
    """
    p_M = finite(p_values, name="p-values")
    if ((p_M < 0) | (p_M > 1)).any():
        raise UsageError(f"p-values must lie in [0, 1]; got {p_M[(p_M < 0) | (p_M > 1)][0]}.")
    order_M = np.argsort(p_M, kind="stable")
    steps_M = np.arange(len(p_M), 0, -1)
    adjusted_M = np.empty_like(p_M)
    adjusted_M[order_M] = np.minimum(1.0, np.maximum.accumulate(p_M[order_M] * steps_M))
    return adjusted_M

"""Kendall's τ-b: how far two rankings agree, equal values allowed."""

from __future__ import annotations

import numpy as np

from moeprune.core.stats import Array


def tau_b(one_E: Array, other_E: Array) -> float:
    """Kendall's τ-b of two lists of values.

    Args:
        one_E: (E,) float64.
        other_E: (E,) float64.

    Returns:
        From -1 (reversed) to 1 (the same order); NaN where one of the lists has no order at all.
    """
    pairs = np.triu_indices(len(one_E), k=1)
    signs = [np.sign(values[pairs[0]] - values[pairs[1]]) for values in (one_E, other_E)]
    ordered = [float(np.count_nonzero(sign)) for sign in signs]
    if not all(ordered):
        return float("nan")
    return float((signs[0] * signs[1]).sum()) / float(np.sqrt(ordered[0] * ordered[1]))

"""The confidence interval of a share whose cases come in clusters: tokens of documents.

C clusters.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import stdtrit

from moeprune.core.stats import Array
from moeprune.evaluate.paired.checks import check_share
from moeprune.evaluate.paired.interval import Interval


def clustered_share(right_C: Array, cases_C: Array, *, level: float = 0.95) -> Interval | None:
    """Student's interval of Σ right / Σ cases, where whole clusters are what is sampled.

    The share is a ratio p of two sums over clusters, with the standard error
    sqrt(C / (C - 1) · Σ (right_c - p cases_c)²) / Σ cases and C - 1 degrees of freedom, cut to
    [0, 1]. Source: Cochran, Sampling Techniques (1977), chapter 6.

    Args:
        right_C: (C,) cases of each cluster that count.
        cases_C: (C,) all cases of each.
        level: confidence.

    Returns:
        None where the clusters cannot tell: there are fewer than two, or none differs.
    """
    check_share(level, name="the confidence level")
    inside_C = cases_C > 0
    right_C, cases_C = right_C[inside_C].astype(np.float64), cases_C[inside_C].astype(np.float64)
    clusters = len(cases_C)
    if clusters < 2:
        return None
    total = float(cases_C.sum())
    share = float(right_C.sum()) / total
    rest = math.fsum((right_C - share * cases_C) ** 2)
    if rest <= 1e-18 * total**2:  # rounding
        return None
    error = math.sqrt(clusters / (clusters - 1) * rest) / total
    half = float(stdtrit(clusters - 1, (1 + level) / 2)) * error
    return Interval(max(0.0, share - half), min(1.0, share + half), level)

"""Several seeds of the same questions: repeated measures, not more questions.

Five samplings of 198 questions are not 990 questions. The unit stays the question: its score is the
mean over the seeds, for the baseline and for the variant, and what is tested is their difference.
N questions, S seeds (or draws) of one run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike
from scipy.special import stdtrit

from moeprune.core.stats import Array
from moeprune.errors import UsageError
from moeprune.evaluate.paired.checks import check_same_length, check_share, finite
from moeprune.evaluate.paired.interval import Interval, two_sided_z
from moeprune.evaluate.paired.signflip import sign_flip


@dataclass(frozen=True, slots=True)
class Repeated:
    """Variant against baseline, each scored on the same questions under one or more seeds.

    Attributes:
        n: questions.
        seeds: of the baseline and of the variant.
        baseline: mean score of the baseline over questions and seeds.
        variant: the same of the variant.
        difference: ``variant`` - ``baseline``.
        p: two-sided, by flipping the signs of the questions' differences; in (0, 1].
        method: ``exact``, ``drawn`` or ``normal``, as ``signflip`` says.
        interval: of ``difference``, clustered by question; None where a single question on a scale
            of its own says nothing.
        baseline_spread: standard deviation (of S - 1) of the baseline's score between seeds; None
            for one seed.
        variant_spread: the same of the variant.
    """

    n: int
    seeds: tuple[int, int]
    baseline: float
    variant: float
    difference: float
    p: float
    method: str
    interval: Interval | None
    baseline_spread: float | None
    variant_spread: float | None


def repeated(
    baseline_NS: ArrayLike, variant_NS: ArrayLike, *, level: float = 0.95, seed: int = 0
) -> Repeated:
    """Compare two runs whose questions were each answered under several seeds.

    d_i = mean over seeds of the variant's score on question i, minus the baseline's. p is the
    sign-flip test of the d_i (``signflip``): exact for right-or-wrong scores, and then with one
    seed the exact McNemar p. With different numbers of seeds it takes the d_i to be symmetric
    about 0 under the null hypothesis, which is true of equal numbers by exchange.

    Args:
        baseline_NS: (N, S) scores; usually 0 or 1.
        variant_NS: (N, S') of the same questions in the same order; S' may differ from S.
        level: confidence of the interval.
        seed: of the drawn signs, where p is drawn.

    Raises:
        UsageError: not a table of finite numbers, no question, or no seed.
        MismatchError: different numbers of questions.
    """
    check_share(level, name="the confidence level")
    one_NS = finite(baseline_NS, name="the baseline's scores", ndim=2)
    other_NS = finite(variant_NS, name="the variant's scores", ndim=2)
    check_same_length(one_NS, other_NS)
    if not one_NS.size or not other_NS.size:
        raise UsageError("a comparison needs at least one question and one seed of each run.")
    ours, theirs = one_NS.shape[1], other_NS.shape[1]
    # Times both numbers of seeds, differences of counts are whole, and their test is exact.
    scaled_N = ours * other_NS.sum(axis=1) - theirs * one_NS.sum(axis=1)
    difference_N = scaled_N / (ours * theirs)
    test = sign_flip(scaled_N, seed=seed)
    in_unit = min(one_NS.min(), other_NS.min()) >= 0 and max(one_NS.max(), other_NS.max()) <= 1
    return Repeated(
        n=len(one_NS),
        seeds=(ours, theirs),
        baseline=float(one_NS.mean()),
        variant=float(other_NS.mean()),
        difference=float(difference_N.mean()),
        p=test.p,
        method=test.method,
        interval=(_unit_interval if in_unit else mean_interval)(difference_N, level=level),
        baseline_spread=_spread(one_NS),
        variant_spread=_spread(other_NS),
    )


def mean_interval(values_N: Array, *, level: float = 0.95) -> Interval | None:
    """Student's interval of a mean: x̄ ± t(N - 1) · s / sqrt(N); None for fewer than 2 values.

    Args:
        values_N: (N,) float64.
        level: confidence.
    """
    if len(values_N) < 2:
        return None
    t = float(stdtrit(len(values_N) - 1, (1 + level) / 2))
    half = t * float(values_N.std(ddof=1)) / math.sqrt(len(values_N))
    mean = float(values_N.mean())
    return Interval(mean - half, mean + half, level)


def _unit_interval(values_N: Array, *, level: float) -> Interval:
    """The mean of differences in [-1, 1]: two questions are added, one lost and one won.

    Without them no difference seen would mean none possible. With one seed this is the adjusted
    Wald interval of Bonett and Price, J. Educ. Behav. Stat. 37:479 (2012); seeds only narrow it.
    """
    mean, size = float(values_N.mean()), len(values_N) + 2
    middle = float(values_N.sum()) / size
    variance = (float((values_N**2).sum()) + 2) / size - middle**2
    half = two_sided_z(level) * math.sqrt(variance / size)
    low, high = max(-1.0, middle - half), min(1.0, middle + half)
    return Interval(min(low, mean), max(high, mean), level)


def _spread(scores_NS: Array) -> float | None:
    return float(scores_NS.mean(axis=0).std(ddof=1)) if scores_NS.shape[1] > 1 else None

"""Confidence intervals of one accuracy, and of the difference of two on the same questions.

For the difference: Tango's score interval. It is McNemar's χ² turned round (it excludes 0 exactly
where that test, uncorrected, rejects), it holds its level for small n and few flips where the
usual b, c ± 1.96 s.e. collapses to a point, and needs no correction for b = c = 0 or n = 1.
Newcombe's method 10 is closed in form but excludes 0 by another rule than the test beside it.
Sources: Tango, Stat. Med. 17:891 (1998); Newcombe, Stat. Med. 17:2635 (1998); Fagerland, Lydersen
and Laake, Stat. Med. 33:2850 (2014), who compare them; Wilson, JASA 22:209 (1927).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from scipy.special import ndtri

from moeprune.errors import UsageError
from moeprune.evaluate.paired.checks import check_share, whole_number


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided confidence interval.

    Attributes:
        low: lower limit, in the unit of what it is an interval of.
        high: upper limit, not below ``low``.
        level: confidence, for example 0.95.
    """

    low: float
    high: float
    level: float

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Real) and self.low <= float(value) <= self.high

    @property
    def half_width(self) -> float:
        """Half of the distance between the limits."""
        return (self.high - self.low) / 2

    def scaled(self, factor: float) -> Interval:
        """Both limits times a positive ``factor``: 100 turns fractions into points."""
        return Interval(self.low * factor, self.high * factor, self.level)


def two_sided_z(level: float) -> float:
    """The normal quantile z with P(|Z| <= z) = ``level``: 1.96 for 0.95.

    Raises:
        UsageError: ``level`` does not lie between 0 and 1.
    """
    check_share(level, name="the confidence level")
    return -float(ndtri((1 - level) / 2))


def wilson(right: int, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of an accuracy, as fractions.

    The p with |right/n - p| <= z · sqrt(p (1 - p) / n).

    Args:
        right: questions answered right.
        n: questions; without any, nothing is known and the interval is [0, 1].
        level: confidence.

    Raises:
        UsageError: counts that cannot be, or a level outside (0, 1).
    """
    right, n = whole_number(right, name="right answers"), whole_number(n, name="questions")
    if right > n:
        raise UsageError(f"{right} right answers cannot come from {n} questions.")
    return wilson_of_share(right / n if n else 0.0, n, level=level)


def wilson_of_share(share: float, n: int, *, level: float = 0.95) -> Interval:
    """``wilson`` where only the accuracy is known: a mean over seeds, a number of a table.

    Args:
        share: accuracy as a fraction in [0, 1]; ``share`` · ``n`` need not be whole.
        n: questions; without any, nothing is known and the interval is [0, 1].
        level: confidence.

    Raises:
        UsageError: a share outside [0, 1], or a level outside (0, 1).
    """
    if not 0 <= share <= 1:
        raise UsageError(f"an accuracy must be a fraction in [0, 1]; got {share}.")
    z = two_sided_z(level)
    if not n:
        return Interval(0.0, 1.0, level)
    middle = (n * share + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(n * share * (1 - share) + z * z / 4)
    # Of all wrong and of all right, the limit is 0 and 1 to the last bit, not nearly so.
    low = 0.0 if share == 0 else max(0.0, middle - half)
    high = 1.0 if share == 1 else min(1.0, middle + half)
    return Interval(min(low, share), max(high, share), level)


def tango(b: int, c: int, n: int, *, level: float = 0.95) -> Interval:
    """Tango's score interval of the variant's accuracy minus the baseline's, as fractions.

    The δ with |c - b - nδ| <= z · sqrt(n (2 q(δ) + δ (1 - δ))), where q(δ) is the most likely
    probability of a flip to wrong when the difference is δ.

    Args:
        b: questions that the baseline has right and the variant wrong.
        c: questions that the baseline has wrong and the variant right.
        n: all questions; without any, nothing is known and the interval is [-1, 1].
        level: confidence.

    Raises:
        UsageError: counts that cannot be, or a level outside (0, 1).
    """
    b, c, n = (whole_number(x, name=name) for x, name in ((b, "b"), (c, "c"), (n, "n")))
    if b + c > n:
        raise UsageError(f"{b} + {c} flips cannot come from {n} questions.")
    z = two_sided_z(level)
    if not n:
        return Interval(-1.0, 1.0, level)
    # One routine for both limits, so that exchanging the two runs mirrors the interval exactly.
    return Interval(-_upper(c, b, n, z), _upper(b, c, n, z), level)


def _upper(down: int, up: int, n: int, z: float) -> float:
    """The largest δ that is not rejected; the score falls monotonically in δ, so by bisection."""
    low, high = (up - down) / n, 1.0
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        q = _likely_down(down, up, n, middle)
        variance = n * (2 * q + middle * (1 - middle))
        if (up - down - n * middle) ** 2 <= z * z * variance:
            low = middle
        else:
            high = middle


def _likely_down(down: int, up: int, n: int, delta: float) -> float:
    """The most likely P(flip to wrong) given the difference: the root of Tango's quadratic.

    2n q² + (δ(2n - up + down) - up - down) q - down δ (1 - δ) = 0.
    """
    linear = delta * (2 * n - up + down) - up - down
    constant = -down * delta * (1 - delta)
    root = math.sqrt(max(0.0, linear * linear - 8 * n * constant))
    # Of the two forms of the root, the one that subtracts no near-equals.
    if linear > 0:
        return -2 * constant / (linear + root)
    return (root - linear) / (4 * n)

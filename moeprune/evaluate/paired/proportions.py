"""Two accuracies of which nothing but the numbers is known: the unpaired comparison.

For tables of papers and leaderboards. With the answers themselves, McNemar's test sees about three
times smaller differences (``resolution``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import erfc

from moeprune.evaluate.paired.checks import probability, whole_number
from moeprune.evaluate.paired.interval import Interval, wilson_of_share


@dataclass(frozen=True, slots=True)
class TwoProportions:
    """The unpaired z-test of two accuracies.

    Attributes:
        difference: accuracy of the variant minus the baseline's, as a fraction.
        z: the difference over its pooled standard error; 0 where that is 0.
        p: two-sided, in (0, 1].
        interval: of the difference.
    """

    difference: float
    z: float
    p: float
    interval: Interval


def two_proportions(
    baseline: float,
    variant: float,
    *,
    n: int,
    n_variant: int | None = None,
    level: float = 0.95,
) -> TwoProportions:
    """Compare two accuracies measured on ``n`` questions each, ignoring that they may be the same.

    z = (v - b) / sqrt(a (1 - a) (1/n_b + 1/n_v)) with a the accuracy of both together. The paper on
    over-dispersed models (section 4.3) gives z = 3.57 for 65.48 % against 47.72 % of 198 questions.
    The interval is Newcombe's square-and-add of two Wilson intervals.
    Sources: Fleiss, Statistical Methods for Rates and Proportions (1981), chapter 2; Newcombe,
    Stat. Med. 17:873 (1998), method 10.

    Args:
        baseline: accuracy as a fraction in [0, 1].
        variant: the same.
        n: questions behind the baseline's, at least 1.
        n_variant: questions behind the variant's; ``n`` where not given.
        level: confidence of the interval.

    Raises:
        UsageError: an accuracy outside [0, 1], no question, or a level outside (0, 1).
    """
    n = whole_number(n, name="questions", least=1)
    other = n if n_variant is None else whole_number(n_variant, name="questions", least=1)
    mine, theirs = (
        wilson_of_share(share, size, level=level)
        for share, size in ((baseline, n), (variant, other))
    )
    pooled = (baseline * n + variant * other) / (n + other)
    error = math.sqrt(max(0.0, pooled * (1 - pooled)) * (1 / n + 1 / other))
    difference = variant - baseline
    z = difference / error if error else 0.0
    down = math.hypot(variant - theirs.low, mine.high - baseline)
    up = math.hypot(theirs.high - variant, baseline - mine.low)
    return TwoProportions(
        difference=difference,
        z=z,
        p=probability(erfc(abs(z) / math.sqrt(2))),
        interval=Interval(max(-1.0, difference - down), min(1.0, difference + up), level),
    )

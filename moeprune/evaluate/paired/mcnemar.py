"""McNemar's test of two runs that answered the same questions.

Only questions on which they differ tell them apart. Under the null hypothesis each of those b + c
flips goes either way with probability 1/2, so b is Binomial(b + c, 1/2), whatever the accuracy.
Sources: McNemar, Psychometrika 12 (1947); Edwards, Psychometrika 13 (1948) for the continuity
correction; Fagerland, Lydersen and Laake, BMC Med. Res. Methodol. 13:91 (2013) for mid-p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, chdtrc

from moeprune.errors import UsageError
from moeprune.evaluate.paired.checks import (
    check_same_length,
    probability,
    right_or_wrong,
    whole_number,
)

EXACT_UP_TO = 10_000
"""Flips up to which ``McNemar.p`` is exact; at 10,001 of them χ² gives 0.04551 for 0.04551."""


@dataclass(frozen=True, slots=True)
class McNemar:
    """McNemar's test of one variant against the baseline, on ``n`` questions that both answered.

    Attributes:
        b: questions that the baseline has right and the variant wrong.
        c: questions that the baseline has wrong and the variant right.
        n: all questions, those without a flip included.
    """

    b: int
    c: int
    n: int

    def __post_init__(self) -> None:
        for name in ("b", "c", "n"):
            object.__setattr__(self, name, whole_number(getattr(self, name), name=name))
        if self.b + self.c > self.n:
            raise UsageError(f"{self.b} + {self.c} flips cannot come from {self.n} questions.")

    @classmethod
    def of(cls, baseline_N: ArrayLike, variant_N: ArrayLike) -> McNemar:
        """Count the flips between two lists of answers to the same questions in the same order.

        Args:
            baseline_N: (N,) bool, or 0 and 1: True = right.
            variant_N: the same.

        Raises:
            UsageError: not one list each, or values that are neither right nor wrong.
            MismatchError: the lists differ in length.
        """
        one_N = right_or_wrong(baseline_N, name="the baseline's answers")
        other_N = right_or_wrong(variant_N, name="the variant's answers")
        check_same_length(one_N, other_N)
        return cls(
            b=int(np.count_nonzero(one_N & ~other_N)),
            c=int(np.count_nonzero(~one_N & other_N)),
            n=len(one_N),
        )

    @property
    def flips(self) -> int:
        """The discordant pairs, b + c."""
        return self.b + self.c

    @property
    def discordant(self) -> float:
        """(b + c) / n: the share of questions that flipped; 0 where there are none."""
        return self.flips / self.n if self.n else 0.0

    @property
    def difference(self) -> float:
        """Accuracy of the variant minus the baseline's, (c - b) / n, as a fraction in [-1, 1]."""
        return (self.c - self.b) / self.n if self.n else 0.0

    @property
    def points(self) -> float:
        """``difference`` in percentage points: negative = the variant is worse."""
        return 100 * (self.c - self.b) / self.n if self.n else 0.0

    @property
    def exact_p(self) -> float:
        """Two-sided binomial p: min(1, 2 · P(X <= min(b, c))) for X ~ Binomial(b + c, 1/2)."""
        return probability(2 * binomial_half_cdf(min(self.b, self.c), self.flips))

    @property
    def mid_p(self) -> float:
        """``exact_p`` less the probability of the outcome itself: P(X <= m - 1) + P(X <= m).

        m = min(b, c). Less conservative than the exact p: it holds the stated level on average,
        not in the worst case (Fagerland et al. 2013).
        """
        least = min(self.b, self.c)
        both = binomial_half_cdf(least - 1, self.flips) + binomial_half_cdf(least, self.flips)
        return 1.0 if self.b == self.c else probability(both)

    @property
    def chi2(self) -> float:
        """(b - c)² / (b + c), χ² with one degree of freedom; 0 where nothing flipped."""
        return (self.b - self.c) ** 2 / self.flips if self.flips else 0.0

    @property
    def chi2_p(self) -> float:
        """The p-value of ``chi2``."""
        return probability(chdtrc(1, self.chi2))

    @property
    def chi2_corrected(self) -> float:
        """max(0, |b - c| - 1)² / (b + c): χ² with Edwards' continuity correction."""
        return max(0, abs(self.b - self.c) - 1) ** 2 / self.flips if self.flips else 0.0

    @property
    def chi2_corrected_p(self) -> float:
        """The p-value of ``chi2_corrected``: the χ² that comes close to ``exact_p``."""
        return probability(chdtrc(1, self.chi2_corrected))

    @property
    def method(self) -> str:
        """The test of ``p``: ``exact`` up to ``EXACT_UP_TO`` flips, ``chi2-corrected`` beyond."""
        return "exact" if self.flips <= EXACT_UP_TO else "chi2-corrected"

    @property
    def p(self) -> float:
        """The p-value to report; two-sided, in (0, 1]."""
        return self.exact_p if self.method == "exact" else self.chi2_corrected_p


def binomial_half_cdf(successes: int, trials: int) -> float:
    """P(X <= successes) for X ~ Binomial(trials, 1/2), by the regularised incomplete beta function.

    P(X <= k) = I_{1/2}(n - k, k + 1); 0 below k = 0 and 1 from k = n on.
    """
    if successes < 0:
        return 0.0
    if successes >= trials:
        return 1.0
    return float(betainc(trials - successes, successes + 1, 0.5))

"""Perplexity beside accuracy: a paired comparison on the same windows, and whether the two agree.

The paper on over-dispersed models (section 4.2) finds them opposed: the configuration of the lowest
perplexity has the worst accuracy. So perplexity is reported, never alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from moeprune.errors import UsageError
from moeprune.evaluate.paired.checks import check_same_length, check_share, finite, probability
from moeprune.evaluate.paired.interval import Interval
from moeprune.evaluate.paired.ranks import Correlation, spearman


@dataclass(frozen=True, slots=True)
class PairedPerplexity:
    """Two perplexities on the same windows of text.

    Attributes:
        windows: how many.
        tokens: predicted tokens in all of them.
        baseline: perplexity, exp(Σ nll / Σ tokens).
        variant: the same of the variant.
        difference: mean nll a token of the variant minus the baseline's, in nats; below 0 = better.
        interval: of ``difference``, over windows; None for a single window.
        p: two-sided, of ``difference`` = 0, over windows; None for a single window.
        better: windows in which the variant's nll is the lower one.
        worse: windows in which it is the higher one.
    """

    windows: int
    tokens: int
    baseline: float
    variant: float
    difference: float
    interval: Interval | None
    p: float | None
    better: int
    worse: int

    @property
    def ratio(self) -> float:
        """Perplexity of the variant over the baseline's: exp(``difference``)."""
        return _exp(self.difference)

    @property
    def ratio_interval(self) -> Interval | None:
        """Of ``ratio``: exp of both limits."""
        if self.interval is None:
            return None
        return Interval(_exp(self.interval.low), _exp(self.interval.high), self.interval.level)


def paired_perplexity(
    baseline_W: ArrayLike, variant_W: ArrayLike, *, tokens_W: ArrayLike, level: float = 0.95
) -> PairedPerplexity:
    """Compare summed negative log-likelihoods window by window.

    D = Σ (v_w - b_w) / Σ t_w is a ratio of two sums over windows, with the standard error
    sqrt(W / (W - 1) · Σ (v_w - b_w - D t_w)²) / Σ t_w and Student's t of W - 1 degrees of freedom.
    Tokens of one window depend on each other, so windows, not tokens, are what is sampled.
    Source: Cochran, Sampling Techniques (1977), chapter 6.

    Args:
        baseline_W: (W,) summed nll of each window, in nats.
        variant_W: the same of the variant, on the same windows in the same order.
        tokens_W: (W,) predicted tokens of each window, at least 1.
        level: confidence.

    Raises:
        UsageError: no window, a window without a token, or numbers that are not finite.
        MismatchError: the lists differ in length.
    """
    check_share(level, name="the confidence level")
    one_W = finite(baseline_W, name="the baseline's nll")
    other_W = finite(variant_W, name="the variant's nll")
    counts_W = finite(tokens_W, name="tokens of the windows")
    check_same_length(one_W, other_W)
    check_same_length(one_W, counts_W)
    if not len(one_W) or counts_W.min() < 1:
        raise UsageError("perplexity needs at least one window, and each at least one token.")
    total, windows = float(counts_W.sum()), len(one_W)
    gap_W = other_W - one_W
    difference = math.fsum(gap_W) / total
    interval, p = None, None
    if windows > 1:
        rest = math.sqrt(windows / (windows - 1) * math.fsum((gap_W - difference * counts_W) ** 2))
        error = rest / total
        half = float(stdtrit(windows - 1, (1 + level) / 2)) * error
        interval = Interval(difference - half, difference + half, level)
        if error:
            p = probability(2 * stdtr(windows - 1, -abs(difference) / error))
        else:
            p = probability(float(difference == 0))
    return PairedPerplexity(
        windows=windows,
        tokens=int(total),
        baseline=_exp(math.fsum(one_W) / total),
        variant=_exp(math.fsum(other_W) / total),
        difference=difference,
        interval=interval,
        p=p,
        better=int(np.count_nonzero(gap_W < 0)),
        worse=int(np.count_nonzero(gap_W > 0)),
    )


@dataclass(frozen=True, slots=True)
class PerplexityBeside:
    """Perplexity against accuracy over a baseline and its variants.

    Attributes:
        correlation: Spearman's ρ over all of them. Perplexity is of use where it is near -1; above
            0 it points the wrong way.
        disagree: one a variant, in order: perplexity and accuracy moved against each other from the
            baseline, one better and the other worse. No change of either is no disagreement.
    """

    correlation: Correlation
    disagree: tuple[bool, ...]

    @property
    def misleading(self) -> bool:
        """ρ is above 0: the lower perplexity goes with the lower accuracy."""
        return self.correlation.value is not None and self.correlation.value > 0


def perplexity_beside(perplexity: Sequence[float], accuracy: Sequence[float]) -> PerplexityBeside:
    """Whether perplexity ranks configurations as accuracy does (the paper's table 1).

    Args:
        perplexity: of the baseline first, then of its variants.
        accuracy: of the same, in the same order; any unit.

    Raises:
        UsageError: no baseline, or numbers that are not finite.
        MismatchError: the lists differ in length.
    """
    one_V = finite(perplexity, name="perplexities")
    other_V = finite(accuracy, name="accuracies")
    check_same_length(one_V, other_V)
    if not len(one_V):
        raise UsageError("perplexity beside accuracy needs the baseline's of both.")
    # Lower perplexity is better and higher accuracy is: the same sign of both changes disagrees.
    signs_V = np.sign(one_V[1:] - one_V[0]) * np.sign(other_V[1:] - other_V[0])
    return PerplexityBeside(spearman(one_V, other_V), tuple((signs_V > 0).tolist()))


def _exp(nats: float) -> float:
    """The exponential; what a float64 cannot hold is given as the largest that it can."""
    return math.exp(nats) if nats < math.log(sys.float_info.max) else sys.float_info.max

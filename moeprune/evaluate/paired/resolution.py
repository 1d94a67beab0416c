"""What a comparison on n questions can see at all, paired and unpaired; differences are fractions.

The paper on halved experts (section 5) states 0.98 points paired and 3.04 unpaired at n = 2000. The
first is 1.96 · sqrt(d / n) with d = 5 % of the questions flipping; the second is
1.96 · sqrt(2 a (1 - a) / n) at an accuracy of a = 59.7 % (or 40.3 %), which the paper does not
state. Both are the difference found significant half of the time (``power`` 0.5): to find a
difference with a power of 80 %, it must be 1.43 times as large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtri

from moeprune.errors import UsageError
from moeprune.evaluate.paired.checks import check_share, whole_number
from moeprune.evaluate.paired.interval import two_sided_z


@dataclass(frozen=True, slots=True)
class Resolution:
    """The smallest differences that ``n`` questions resolve, as fractions of 1.

    Attributes:
        n: questions.
        discordant: share of questions assumed, or seen, to flip.
        accuracy: accuracy assumed, or seen, for the unpaired counterpart.
        level: confidence, 1 - the two-sided significance level.
        power: chance to find a difference of that size.
        paired: by a paired test; at least what ``least_flips`` of ``n`` make. None where even all
            questions flipping one way would not be significant.
        unpaired: by two independent samples of ``n`` each; None likewise.
        least_flips: flips, all one way, below which the exact test cannot be significant.
    """

    n: int
    discordant: float
    accuracy: float
    level: float
    power: float
    paired: float | None
    unpaired: float | None
    least_flips: int


def resolution(
    n: int,
    *,
    discordant: float = 0.05,
    accuracy: float = 0.5,
    level: float = 0.95,
    power: float = 0.5,
) -> Resolution:
    """Everything this module says of ``n`` questions.

    Args:
        n: questions, at least 1.
        discordant: share that flips, in [0, 1]; pruned and native models of the paper: 5 to 10 %.
        accuracy: for the unpaired counterpart; 0.5 is its worst case.
        level: confidence.
        power: 0.5 for the paper's notion, 0.8 for planning.

    Raises:
        UsageError: a share outside its range, or no question.
    """
    least = least_significant_flips(level=level)
    paired = paired_resolution(n, discordant=discordant, level=level, power=power)
    unpaired = unpaired_resolution(n, accuracy=accuracy, level=level, power=power)
    return Resolution(
        n=n,
        discordant=discordant,
        accuracy=accuracy,
        level=level,
        power=power,
        paired=max(paired, least / n) if least <= n else None,
        unpaired=unpaired if unpaired <= 1 else None,
        least_flips=least,
    )


def paired_resolution(
    n: int, *, discordant: float, level: float = 0.95, power: float = 0.5
) -> float:
    """The smallest true difference that McNemar's test finds with probability ``power``.

    The δ with z_α sqrt(d) + z_β sqrt(d - δ²) = δ sqrt(n); at power 0.5 that is z_α · sqrt(d / n).
    Source: Connor, Biometrics 43:207 (1987), solved for δ.

    Args:
        n: questions, at least 1.
        discordant: d, the share of questions that flips, in [0, 1].
        level: confidence, 1 - α.
        power: 1 - β, at least 0.5.

    Returns:
        δ as a fraction. No difference can exceed ``discordant``: a larger δ says that with so few
        flips nothing is found (``resolution`` therefore gives at least the least flips' share).

    Raises:
        UsageError: a share outside its range, or no question.
    """
    n = whole_number(n, name="questions", least=1)
    _check_fraction(discordant, name="the share of flips")
    z_alpha, z_beta = two_sided_z(level), _one_sided_z(power)
    # δ² (n + z_β²) - 2 δ z_α sqrt(n d) + d (z_α² - z_β²) = 0; the larger root.
    inner = max(0.0, discordant * (n + z_beta**2 - z_alpha**2))
    return (z_alpha * math.sqrt(n * discordant) + z_beta * math.sqrt(inner)) / (n + z_beta**2)


def unpaired_resolution(
    n: int, *, accuracy: float, level: float = 0.95, power: float = 0.5
) -> float:
    """The smallest difference found by two independent samples of ``n`` questions each.

    (z_α + z_β) · sqrt(2 a (1 - a) / n): what is left of a comparison whose pairing is thrown away.

    Args:
        n: questions in each sample, at least 1.
        accuracy: a, that of both, in [0, 1].
        level: confidence.
        power: at least 0.5.

    Raises:
        UsageError: a share outside its range, or no question.
    """
    n = whole_number(n, name="questions", least=1)
    _check_fraction(accuracy, name="the accuracy")
    z = two_sided_z(level) + _one_sided_z(power)
    return z * math.sqrt(2 * accuracy * (1 - accuracy) / n)


def paired_questions(
    difference: float, *, discordant: float, level: float = 0.95, power: float = 0.8
) -> int:
    """Questions needed for McNemar's test to find ``difference`` with probability ``power``.

    n = ((z_α sqrt(d) + z_β sqrt(d - δ²)) / δ)², rounded up (Connor 1987); never fewer than it takes
    to see ``least_significant_flips``.

    Args:
        difference: δ, the true difference of accuracies as a fraction; its sign does not matter.
        discordant: d, the share of questions that flips, from |δ| to 1.
        level: confidence.
        power: at least 0.5.

    Raises:
        UsageError: no difference, one larger than ``discordant``, or a share outside its range.
    """
    delta = _effect(difference)
    _check_fraction(discordant, name="the share of flips")
    if delta > discordant:
        raise UsageError(
            f"a difference of {delta} needs at least that share of flips; got {discordant}."
        )
    spread = math.sqrt(max(0.0, discordant - delta**2))
    root = two_sided_z(level) * math.sqrt(discordant) + _one_sided_z(power) * spread
    return max(_round_up((root / delta) ** 2), least_significant_flips(level=level))


def unpaired_questions(
    difference: float, *, accuracy: float, level: float = 0.95, power: float = 0.8
) -> int:
    """Questions that each of two independent samples needs: 2 a (1 - a) · ((z_α + z_β) / δ)².

    Args:
        difference: δ as a fraction; its sign does not matter.
        accuracy: a, that of both, in [0, 1].
        level: confidence.
        power: at least 0.5.

    Raises:
        UsageError: no difference, or a share outside its range.
    """
    delta = _effect(difference)
    _check_fraction(accuracy, name="the accuracy")
    z = two_sided_z(level) + _one_sided_z(power)
    return max(1, _round_up(2 * accuracy * (1 - accuracy) * (z / delta) ** 2))


def least_significant_flips(*, level: float = 0.95) -> int:
    """The fewest flips that the exact test can find significant: the least m with 2 · 2^-m < α.

    6 for a level of 0.95, if all of them go the same way: five give p = 0.0625.

    Raises:
        UsageError: ``level`` does not lie between 0 and 1.
    """
    check_share(level, name="the confidence level")
    flips = 1
    while 2.0 ** (1 - flips) >= 1 - level:
        flips += 1
    return flips


def _one_sided_z(power: float) -> float:
    if not 0.5 <= power < 1:
        raise UsageError(f"the power must lie in [0.5, 1); got {power}.")
    return float(ndtri(power))


def _check_fraction(value: float, *, name: str) -> None:
    if not 0 <= value <= 1:
        raise UsageError(f"{name} must be a fraction in [0, 1]; got {value}.")


def _effect(difference: float) -> float:
    if not 0 < abs(difference) <= 1:
        raise UsageError(f"the difference must be a fraction other than 0; got {difference}.")
    return abs(difference)


def _round_up(questions: float) -> int:
    # A whole number that rounding lifted by an ulp is that number, not the next.
    return math.ceil(questions * (1 - 1e-12))

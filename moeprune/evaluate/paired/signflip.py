"""The sign-flip test of differences of pairs: is their mean 0.

Under the null hypothesis, baseline and variant could be exchanged within any question, so every
difference may have either sign with probability 1/2. The p-value is the share of all 2^N
assignments of signs whose sum is at least as far from 0 as the one seen. With differences of ±1 it
is the binomial of McNemar's exact test.
Sources: Fisher, The Design of Experiments (1935), section 21; Phipson and Smyth, Stat. Appl.
Genet. Mol. Biol. 9:39 (2010) for (k + 1) / (m + 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, erfc

from moeprune.core.stats import Array
from moeprune.evaluate.paired.checks import finite, probability
from moeprune.evaluate.paired.mcnemar import binomial_half_cdf

ENUMERATED_UP_TO = 20
"""Differences other than 0, not whole numbers, up to which all 2^N signs are gone through."""

EXACT_WORK = 300_000_000
"""Additions that the exact distribution of whole differences may take: some tenths of a second."""

DRAWS = 100_000
"""Assignments drawn where that is too much; fewer, down to 5,000, where questions are many."""

NORMAL_BEYOND = 20_000
"""Differences beyond which nothing is drawn any more, unless one of them outweighs the others."""


@dataclass(frozen=True, slots=True)
class SignFlip:
    """The result of a sign-flip test.

    Attributes:
        p: two-sided, in (0, 1].
        method: ``exact``, ``drawn`` (seeded random signs) or ``normal``.
    """

    p: float
    method: str


def sign_flip(differences: ArrayLike, *, seed: int = 0) -> SignFlip:
    """Test whether the mean of ``differences`` is 0, by flipping their signs.

    Whole numbers (differences of counts; scale them first) get an exact p-value, by building up the
    distribution of their sum. Where that is too much work signs are drawn, and of very many
    differences the sum is taken as normal: z = Σ d / sqrt(Σ d²).

    Args:
        differences: (N,) finite numbers, one a question; those that are 0 do not matter.
        seed: of the drawn signs.

    Raises:
        UsageError: not one list of finite numbers.
    """
    given_N = finite(differences, name="differences")
    nonzero_N = given_N[given_N != 0]
    if not len(nonzero_N):
        return SignFlip(1.0, "exact")
    # Sizes near the ends of what a float64 holds must not overflow when squared or summed.
    largest = float(np.abs(nonzero_N).max())
    if np.all(nonzero_N == np.rint(nonzero_N)) and largest * len(nonzero_N) < 2.0**53:
        p = _whole_p(nonzero_N.astype(np.int64))
        if p is not None:
            return SignFlip(p, "exact")
    nonzero_N = nonzero_N / largest
    if len(nonzero_N) <= ENUMERATED_UP_TO:
        return SignFlip(_enumerated_p(nonzero_N), "exact")
    squares = float(nonzero_N @ nonzero_N)
    if len(nonzero_N) > NORMAL_BEYOND and squares > 100:
        z = math.fsum(nonzero_N) / math.sqrt(squares)
        return SignFlip(probability(erfc(abs(z) / math.sqrt(2))), "normal")
    return SignFlip(_drawn_p(nonzero_N, seed), "drawn")


def _whole_p(differences_N: NDArray[np.int64]) -> float | None:
    """The exact p of whole differences, or None where that is too much work.

    W, the sum of the sizes that come out positive, is a sum over sizes s of s · Binomial(how many
    of them, 1/2), and symmetric about half the total: p = 2 P(W <= the smaller of both sides).
    """
    sizes_G, counts_G = np.unique(np.abs(differences_N), return_counts=True)
    unit = int(np.gcd.reduce(sizes_G))
    sizes_G = sizes_G // unit
    positive = int(differences_N[differences_N > 0].sum()) // unit
    total = int(sizes_G @ counts_G)
    smaller = min(positive, total - positive)
    if len(sizes_G) == 1:
        return probability(2 * binomial_half_cdf(smaller, int(counts_G[0])))
    steps_G = np.minimum(counts_G, smaller // sizes_G) + 1
    if int(steps_G.sum()) * (smaller + 1) > EXACT_WORK:
        return None
    chance_W = np.zeros(smaller + 1)
    chance_W[0] = 1.0
    for size, count, steps in zip(
        sizes_G.tolist(), counts_G.tolist(), steps_G.tolist(), strict=True
    ):
        weights = _binomial_half(count)[:steps]
        before_W, chance_W = chance_W, np.zeros_like(chance_W)
        for times in np.flatnonzero(weights).tolist():
            chance_W[size * times :] += weights[times] * before_W[: len(before_W) - size * times]
    return probability(2 * math.fsum(chance_W))


def _binomial_half(trials: int) -> Array:
    """P(X = 0 … trials), X ~ Binomial(trials, 1/2), each to nearly full relative precision."""
    half = trials // 2
    upto = betainc(trials - np.arange(half + 1.0), np.arange(1.0, half + 2), 0.5)
    lower = np.diff(upto, prepend=0.0)
    return np.concatenate([lower, lower[::-1] if trials % 2 else lower[-2::-1]])


def _enumerated_p(differences_N: Array) -> float:
    sums = np.zeros(1)
    for size in np.abs(differences_N):
        sums = np.concatenate([sums + size, sums - size])
    return probability(float(np.mean(np.abs(sums) >= _seen(differences_N))))


def _drawn_p(differences_N: Array, seed: int) -> float:
    generator = np.random.default_rng(seed)
    sizes_G, counts_G = np.unique(np.abs(differences_N), return_counts=True)
    # A binomial draw of a size that comes often costs about as much as 32 single signs.
    if 32 * len(sizes_G) > len(differences_N):
        sizes_G, counts_G = np.abs(differences_N), np.ones(len(differences_N), dtype=np.int64)
    draws = max(5_000, min(DRAWS, 100_000_000 // len(sizes_G)))
    block = max(1, 4_000_000 // len(sizes_G))
    seen, total, hits = _seen(differences_N), float(counts_G @ sizes_G), 0
    for start in range(0, draws, block):
        shape = (min(block, draws - start), len(sizes_G))
        if counts_G.max() > 1:
            positive_DG = generator.binomial(counts_G, 0.5, size=shape)
        else:
            positive_DG = generator.integers(0, 2, size=shape, dtype=np.int8)
        sums_D = 2 * (positive_DG @ sizes_G) - total
        hits += int(np.count_nonzero(np.abs(sums_D) >= seen))
    return probability((hits + 1) / (draws + 1))


def _seen(differences_N: Array) -> float:
    """How far from 0 the sum lies, less what adding up in another order may change."""
    return abs(math.fsum(differences_N)) - 1e-12 * float(np.abs(differences_N).sum())

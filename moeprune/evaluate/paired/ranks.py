"""Correlation of few values: Spearman's ρ and Pearson's r, with p-values by permutation.

Variants are few (5 configurations in the paper's table 1), where the usual t approximation says
nothing. A permutation test is exact: under the null hypothesis every order of the second list is as
likely as any other. The smallest two-sided p of n values is 2 / n!.
Sources: Spearman, Am. J. Psychol. 15:72 (1904); Phipson and Smyth, Stat. Appl. Genet. Mol. Biol.
9:39 (2010) for (k + 1) / (m + 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moeprune.core.stats import Array
from moeprune.evaluate.paired.checks import check_same_length, finite, probability

EXACT_UP_TO = 8
"""Values up to which all n! orders are gone through (40,320)."""

DRAWS = 100_000
"""Orders drawn beyond that."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """A correlation and its two-sided p-value.

    Attributes:
        value: from -1 to 1; None where one of the lists is constant or has fewer than 2 values.
        p: share of orders of the second list whose correlation is at least as far from 0, in
            (0, 1]; 1 where there is no correlation.
        n: values in each list.
        method: ``exact`` (all orders), ``drawn`` (seeded random orders) or ``none``.
    """

    value: float | None
    p: float
    n: int
    method: str


def average_ranks(values: ArrayLike) -> Array:
    """Ranks from 1, smallest first; equal values share the mean of their ranks.

    Args:
        values: (N,) finite numbers.

    Returns:
        (N,) float64, whole or half.
    """
    values_N = finite(values, name="values")
    ordered_N = np.sort(values_N)
    below_N = np.searchsorted(ordered_N, values_N, side="left")
    upto_N = np.searchsorted(ordered_N, values_N, side="right")
    return np.asarray((below_N + upto_N + 1) / 2)


def rho(one: ArrayLike, other: ArrayLike) -> float | None:
    """Spearman's ρ: Pearson's r of the average ranks; None where one list is constant.

    Raises:
        MismatchError: the lists differ in length.
    """
    # Twice a rank is whole: every sum is exact, and so is ρ up to its own rounding.
    one_N, other_N = 2 * average_ranks(one), 2 * average_ranks(other)
    check_same_length(one_N, other_N)

    def moment(left_N: Array, right_N: Array) -> float:
        return float(len(left_N) * (left_N @ right_N) - left_N.sum() * right_N.sum())

    norm = math.sqrt(moment(one_N, one_N) * moment(other_N, other_N))
    return max(-1.0, min(1.0, moment(one_N, other_N) / norm)) if norm else None


def r(one: ArrayLike, other: ArrayLike) -> float | None:
    """Pearson's r: Σ (x - x̄)(y - ȳ) / sqrt(Σ (x - x̄)² · Σ (y - ȳ)²); None where one is constant.

    Raises:
        MismatchError: the lists differ in length.
    """
    one_N, other_N = _centred(one), _centred(other)
    check_same_length(one_N, other_N)
    norm = float(np.linalg.norm(one_N) * np.linalg.norm(other_N))
    if not norm:
        return None
    return float(np.clip(one_N @ other_N / norm, -1, 1))


def spearman(one: ArrayLike, other: ArrayLike, *, seed: int = 0) -> Correlation:
    """Spearman's ρ of two lists, ties allowed, with its two-sided permutation p.

    Args:
        one: (N,) finite numbers.
        other: (N,) the same.
        seed: of the drawn orders, beyond ``EXACT_UP_TO`` values.

    Raises:
        UsageError: not one list of finite numbers each.
        MismatchError: the lists differ in length.
    """
    # Twice a rank is whole, so sums of products are exact and equal outcomes compare as equal.
    return _tested(rho(one, other), 2 * average_ranks(one), 2 * average_ranks(other), seed, 0.0)


def pearson(one: ArrayLike, other: ArrayLike, *, seed: int = 0) -> Correlation:
    """Pearson's r of two lists, with its two-sided permutation p; arguments as for ``spearman``."""
    return _tested(r(one, other), _unit(one), _unit(other), seed, 1e-12)


def _tested(
    value: float | None, one_N: Array, other_N: Array, seed: int, tolerance: float
) -> Correlation:
    size = len(one_N)
    if value is None:
        return Correlation(None, 1.0, size, "none")
    # n Σxy - Σx Σy has the sign and the order of r, and is exact on whole numbers.
    centre = one_N.sum() * other_N.sum()

    def distance(orders_PN: NDArray[np.intp]) -> Array:
        return np.abs(size * (other_N[orders_PN] @ one_N) - centre)

    seen = distance(np.arange(size)[None])[0] - tolerance
    if size <= EXACT_UP_TO:
        return Correlation(value, _share_of(distance, seen, size), size, "exact")
    generator = np.random.default_rng(seed)
    hits, block = 0, max(1, 2_000_000 // size)
    for start in range(0, DRAWS, block):
        keys_PN = generator.random((min(block, DRAWS - start), size))
        hits += int(np.count_nonzero(distance(np.argsort(keys_PN, axis=1)) >= seen))
    return Correlation(value, probability((hits + 1) / (DRAWS + 1)), size, "drawn")


def _share_of(distance: Callable[[NDArray[np.intp]], Array], seen: float, size: int) -> float:
    orders_PN = _orders(size)
    return probability(np.count_nonzero(distance(orders_PN) >= seen) / len(orders_PN))


def _orders(size: int) -> NDArray[np.intp]:
    """All orders of 0 … size - 1, (size!, size): each smaller one with the last at every place."""
    orders_PN = np.zeros((1, 1), dtype=np.intp)
    for last in range(1, size):
        orders_PN = np.concatenate(
            [np.insert(orders_PN, place, last, axis=1) for place in range(last + 1)]
        )
    return orders_PN


def _centred(values: ArrayLike) -> Array:
    values_N = finite(values, name="values")
    if len(values_N) < 2 or values_N.min() == values_N.max():
        return np.zeros_like(values_N)
    # Scaled first: the mean of equal tiny or huge values must not overflow or leave a remainder.
    scaled_N = values_N / np.abs(values_N).max()
    return np.asarray(scaled_N - scaled_N.mean())


def _unit(values: ArrayLike) -> Array:
    centred_N = _centred(values)
    norm = float(np.linalg.norm(centred_N))
    return centred_N / norm if norm else centred_N

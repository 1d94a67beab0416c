"""Whether the variants' ranks invert between two groups of tasks, more than between any two.

The paper on over-dispersed models (section 5.1, appendix B) compares Spearman's ρ between the group
means of {GSM8K, AIME'25} and {MMLU, ARC-C, ARC-E} over the methods to partitions of the tasks. It
describes them loosely (6 against 6 of 12 tasks, "equivalently" 3 against 3 of 6; the groups have 2
and 3). Here it is well defined: the null distribution is ρ over *all* ways to draw two disjoint
groups *of the same two sizes* from all tasks of the table, each equally likely, the observed one
among them; p is the share whose ρ is at most the observed, so never 0.

What the paper's own table 2 gives: over its four methods (without Random) ρ = -0.8, r = -0.88 and
p = 0.11; with Random as the fifth ρ = +0.1. Its p = 0.0004 does not come out of these numbers.

It is a weak test by its nature: partitions that share most of both groups invert as well and count
against the observed one. Many tasks outside both groups make it sharper.

Groups found in the same table (``clusters.found_clusters``) were chosen because they differ: the p
of those is smaller than it should be. ``tradeoff`` marks them as ``found``.

V variants, T tasks, P partitions.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprune.core.stats import Array
from moeprune.evaluate.paired.checks import finite, probability
from moeprune.evaluate.paired.ranks import r

ALL_UP_TO = 20_000
"""Partitions up to which all are gone through; beyond, as many are drawn."""

BLOCK = 1_000
"""Partitions looked at together: bounds the memory."""


@dataclass(frozen=True, slots=True)
class Inversion:
    """Rank correlation of the variants between two groups of tasks, and how rare it is.

    Attributes:
        rho: Spearman's ρ between the two group means over variants; -1 = the ranks invert. None
            where all variants have the same mean in a group.
        pearson: Pearson's r of the same means; None as ``rho``.
        p: one-sided, the share of partitions whose ρ is at most ``rho``; in (0, 1]. 1 where there
            is no ρ.
        partitions: how many were looked at, the observed one included.
        method: ``exact`` (all partitions), ``drawn`` (seeded) or ``none``.
        variants: V, how many rows the ranks are over.
    """

    rho: float | None
    pearson: float | None
    p: float
    partitions: int
    method: str
    variants: int


def inversion(accuracy_VT: Array, one: list[int], other: list[int], *, seed: int = 0) -> Inversion:
    """Test whether ranks invert between two groups of tasks.

    Args:
        accuracy_VT: (V, T) float64; whether the baseline is a row is the caller's choice (the paper
            reports both). Subtracting the baseline from all rows changes nothing.
        one: columns of the first group.
        other: columns of the second; none of the first.
        seed: of the drawn partitions, beyond ``ALL_UP_TO``.

    Raises:
        UsageError: numbers that are not finite.
    """
    accuracy_VT = finite(accuracy_VT, name="accuracies", ndim=2)
    variants, tasks = accuracy_VT.shape
    means = [accuracy_VT[:, columns].mean(axis=1) for columns in (one, other)]
    seen_P = _rho_P(accuracy_VT, np.array([one]), np.array([other]))
    if np.isnan(seen_P[0]):
        return Inversion(None, r(*means), 1.0, 0, "none", variants)
    size, size_other = len(one), len(other)
    # Groups of the same size can be named either way: each partition then comes twice.
    named = 2 if size == size_other else 1
    count = math.comb(tasks, size) * math.comb(tasks - size, size_other) // named
    every = count <= ALL_UP_TO
    draw = _all_pairs(tasks, size, size_other) if every else _drawn(tasks, size, size_other, seed)
    one_PA, other_PB = draw
    hits, looked = 0, len(one_PA)
    for start in range(0, looked, BLOCK):
        block = slice(start, start + BLOCK)
        rho_P = _rho_P(accuracy_VT, one_PA[block], other_PB[block])
        # A group without any order has no ρ; it counts as 0, no inversion.
        hits += int(np.count_nonzero(np.nan_to_num(rho_P) <= seen_P[0] + 1e-12))
    p = hits / looked if every else (hits + 1) / (looked + 1)
    return Inversion(
        rho=float(seen_P[0]),
        pearson=r(*means),
        p=probability(p),
        partitions=count if every else looked + 1,
        method="exact" if every else "drawn",
        variants=variants,
    )


def _all_pairs(tasks: int, size: int, size_other: int) -> tuple[NDArray[np.intp], ...]:
    """Every first group, beside every second group of the rest: (P, size), (P, size_other)."""
    one_PA = np.array(list(itertools.combinations(range(tasks), size)))
    outside_PT = np.ones((len(one_PA), tasks), dtype=np.bool_)
    np.put_along_axis(outside_PT, one_PA, False, axis=1)
    rest_PR = np.nonzero(outside_PT)[1].reshape(len(one_PA), tasks - size)
    inner = np.array(list(itertools.combinations(range(tasks - size), size_other)))
    other_PB = rest_PR[:, inner].reshape(-1, size_other)
    return np.repeat(one_PA, len(inner), axis=0), other_PB


def _drawn(tasks: int, size: int, size_other: int, seed: int) -> tuple[NDArray[np.intp], ...]:
    keys_PT = np.random.default_rng(seed).random((ALL_UP_TO, tasks))
    order_PT = np.argsort(keys_PT, axis=1)
    return order_PT[:, :size], order_PT[:, size : size + size_other]


def _rho_P(accuracy_VT: Array, one_PA: NDArray[np.intp], other_PB: NDArray[np.intp]) -> Array:
    """Spearman's ρ of each partition; NaN where a group puts all variants level."""
    one_PV = _doubled_ranks(accuracy_VT[:, one_PA].mean(axis=-1).T)
    other_PV = _doubled_ranks(accuracy_VT[:, other_PB].mean(axis=-1).T)
    variants = len(accuracy_VT)

    def moment(left_PV: Array, right_PV: Array) -> Array:
        product_P = variants * (left_PV * right_PV).sum(axis=1)
        return np.asarray(product_P - left_PV.sum(axis=1) * right_PV.sum(axis=1))

    norm_P = np.sqrt(moment(one_PV, one_PV) * moment(other_PV, other_PV))
    empty_P = np.full(len(norm_P), np.nan)
    return np.divide(moment(one_PV, other_PV), norm_P, out=empty_P, where=norm_P > 0)


def _doubled_ranks(means_PV: Array) -> Array:
    """Twice the average ranks of each row, whole; means that differ by rounding only are equal."""
    scale = float(np.abs(means_PV).max(initial=0)) or 1.0
    rounded_PV = np.round(means_PV / scale, 10)
    below_PV = (rounded_PV[:, :, None] > rounded_PV[:, None, :]).sum(axis=-1)
    upto_PV = (rounded_PV[:, :, None] >= rounded_PV[:, None, :]).sum(axis=-1)
    return np.asarray(below_PV + upto_PV + 1, dtype=np.float64)

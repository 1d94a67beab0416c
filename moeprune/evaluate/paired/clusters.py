"""Two groups of tasks found in the loadings: which tasks do the variants gain and lose together.

T tasks, C components.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from moeprune.core.stats import Array
from moeprune.evaluate.paired.pca import Components

COMPONENTS = 2
"""Components that the groups are read from, as in the paper's section 5.1."""

ALIKE = 0.9
"""Cosine between two groups, about the correlation of their means over variants, that is too high
for a trade-off; the groups of the paper's table 2 have -0.21 (-0.72 without random pruning)."""


def found_clusters(components: Components, tasks: tuple[str, ...]) -> dict[str, list[str]] | None:
    """Split tasks in two by 2-means on their loading vectors (the paper's appendix C).

    A task's vector is its loading on the first two components, each times the component's standard
    deviation, so that distances are those of the accuracy matrix seen along both.

    Args:
        components: of the accuracy matrix.
        tasks: (T,) names.

    Returns:
        ``A``, the group of the first task, and ``B``, each in the order of ``tasks``; None where
        the variants gain and lose on all tasks alike, so that any split would be one of noise: the
        mean vectors of both groups have a cosine above ``ALIKE``.
    """
    spread_C = np.sqrt((components.score_VC**2).sum(axis=0))[:COMPONENTS]
    point_TC = components.loading_CT[:COMPONENTS].T * spread_C
    in_A_T = two_means(point_TC)
    if in_A_T is None or _cosine(point_TC[in_A_T], point_TC[~in_A_T]) > ALIKE:
        return None
    return {
        "A": [task for task, inside in zip(tasks, in_A_T, strict=True) if inside],
        "B": [task for task, inside in zip(tasks, in_A_T, strict=True) if not inside],
    }


def two_means(point_TC: Array) -> NDArray[np.bool_] | None:
    """2-means without chance: Lloyd's steps from every two points, and the tightest outcome.

    Minimises the sum of squared distances to the two means; of equal outcomes the one found first.
    Source: Lloyd, IEEE Trans. Inf. Theory 28:129 (1982).

    Args:
        point_TC: (T, C) float64.

    Returns:
        (T,) bool, True = in the group of the first point; None where all points are the same.
    """
    best: NDArray[np.bool_] | None = None
    lowest = np.inf
    scale = float(np.abs(point_TC - point_TC.mean(axis=0)).max(initial=0))
    if scale <= 1e-12 * float(np.abs(point_TC).max(initial=0)):
        return None
    for one, other in itertools.combinations(range(len(point_TC)), 2):
        near_T = _lloyd(point_TC, point_TC[one], point_TC[other])
        if near_T.all() or not near_T.any():
            continue
        loss = sum(_spread(point_TC[group]) for group in (near_T, ~near_T))
        # Only what is lower by more than rounding: equal outcomes keep the first.
        if loss < lowest - 1e-9 * scale**2:
            best, lowest = near_T, loss
    if best is None:
        return None
    return best if best[0] else ~best


def _lloyd(point_TC: Array, one_C: Array, other_C: Array) -> NDArray[np.bool_]:
    near_T = np.zeros(len(point_TC), dtype=np.bool_)
    # Each step lowers the loss, so no grouping comes twice and this ends; in practice by 10.
    for _ in range(100):
        last_T = near_T
        near_T = _distance(point_TC, one_C) <= _distance(point_TC, other_C)
        if near_T.all() or not near_T.any() or np.array_equal(near_T, last_T):
            break
        one_C, other_C = point_TC[near_T].mean(axis=0), point_TC[~near_T].mean(axis=0)
    return np.asarray(near_T)


def _distance(point_TC: Array, centre_C: Array) -> Array:
    return np.asarray(((point_TC - centre_C) ** 2).sum(axis=1))


def _cosine(one_TC: Array, other_TC: Array) -> float:
    one_C, other_C = one_TC.mean(axis=0), other_TC.mean(axis=0)
    norm = float(np.linalg.norm(one_C) * np.linalg.norm(other_C))
    return float(one_C @ other_C) / norm if norm else 0.0


def _spread(point_TC: Array) -> float:
    return float(_distance(point_TC, point_TC.mean(axis=0)).sum())

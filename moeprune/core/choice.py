"""From scores to experts: the lowest leave, under a budget. What every allocator shares.

D domains, L MoE layers, E experts of the widest layer, G router groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.core.budget import Budget
from moeprune.core.stats import Array

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an allocator decided.

    Attributes:
        keep_LE: (L, E) bool, True = the expert stays.
        details: what the allocator has to say of it, plain JSON values; they go into the plan.
    """

    keep_LE: Mask
    details: Mapping[str, Any] = field(default_factory=dict)


def keep_highest(score_LE: Array, budget: Budget) -> Mask:
    """Remove the experts with the lowest scores that the budget lets go.

    Within a layer the order is ascending score, equal scores by lower id; with router groups the
    lowest of each group leave together. A chunk of experts (``budget.unit``; the first one trims
    the layer to a multiple of it) is worth the mean score of its experts. Means never fall within a
    layer, so taking the lowest chunk of all layers again and again removes the least total score
    that whole chunks of one size can. Equal chunks: the earlier layer goes first. What the budget
    protects is worth infinitely much; what must leave a layer (``min_remove``) goes first.

    Args:
        score_LE: (L, E) float64, not NaN, comparable between layers; entries beyond a narrow
            layer's experts are not read.
        budget: how many may leave where.

    Returns:
        (L, E) bool, True = the expert stays; False beyond a narrow layer's experts.
    """
    orders = leaving_orders(score_LE, budget)
    score_LE = _with_protected(score_LE, budget)
    least_L = budget.min_remove or (0,) * len(orders)
    worth: list[Array] = []
    size: list[Array] = []
    for row, (count, limit) in enumerate(zip(budget.num_experts, budget.max_remove, strict=True)):
        ends = chunk_ends(count, limit, budget.unit)
        sizes = np.diff(ends, prepend=0)
        starts = ends - sizes
        ordered_E = score_LE[row, orders[row]]
        if ends.size:
            means = np.add.reduceat(ordered_E[: ends[-1]], starts) / sizes
            # Rounding may let the mean of equal scores fall by a last bit; order must not follow.
            means = np.maximum.accumulate(means)
            # What must leave goes first, whatever it is worth.
            means[: np.count_nonzero(ends <= least_L[row])] = -np.inf
            worth.append(means)
        size.append(sizes)
    layer = np.repeat(np.arange(len(size)), [sizes.size for sizes in size])
    all_size = np.concatenate(size)
    cheapest = np.argsort(np.concatenate(worth), kind="stable")  # ties: by layer, by position
    return keep_counts(orders, _take(layer[cheapest], all_size[cheapest], budget))


def leaving_orders(score_LE: Array, budget: Budget) -> tuple[NDArray[np.intp], ...]:
    """In which order the experts of each layer leave, whatever their number.

    Ascending score, equal scores by lower id; with router groups the lowest of each group leave
    together; what the budget protects stands last.

    Args:
        score_LE: (L, E) float64, not NaN; entries beyond a narrow layer's experts are not read.
        budget: the groups and what is protected; its numbers are not read.

    Returns:
        L arrays: all ids of the layer, the first to leave first.
    """
    assert score_LE.shape == (len(budget.num_experts), max(budget.num_experts))
    score_LE = _with_protected(score_LE, budget)
    return tuple(
        _order(score_LE[row, :count], budget.num_groups)
        for row, count in enumerate(budget.num_experts)
    )


def keep_counts(orders: Sequence[NDArray[np.intp]], leave_L: Sequence[int]) -> Mask:
    """Remove that many experts of each layer, in the order they leave.

    Args:
        orders: see :func:`leaving_orders`.
        leave_L: (L,) experts that leave each layer.

    Returns:
        (L, E) bool, True = the expert stays; False beyond a narrow layer's experts.
    """
    keep_LE = real_LE(tuple(order.size for order in orders))
    for row, (order, leave) in enumerate(zip(orders, leave_L, strict=True)):
        keep_LE[row, order[:leave]] = False
    return keep_LE


def _with_protected(score_LE: Array, budget: Budget) -> Array:
    if not any(budget.protected):
        return score_LE
    out_LE = np.array(score_LE, dtype=np.float64)
    for row, ids in enumerate(budget.protected):
        out_LE[row, list(ids)] = np.inf
    return out_LE


def _order(score_E: Array, groups: int) -> NDArray[np.intp]:
    """Ids in the order they leave: G at a time, the lowest left in each group."""
    score_GX = score_E.reshape(groups, -1)
    rank_GX = np.argsort(score_GX, axis=1, kind="stable")
    ids_GX = rank_GX + np.arange(groups)[:, None] * score_GX.shape[1]
    return np.asarray(ids_GX.T.reshape(-1))


def chunk_ends(count: int, limit: int, unit: int) -> NDArray[np.int64]:
    """Where each chunk ends in a layer's order, up to ``limit`` experts: what may leave it.

    Args:
        count: its experts.
        limit: the most that may leave.
        unit: what stays is a multiple of this, or all.
    """
    first = count % unit or unit
    return np.arange(first, limit + 1, unit, dtype=np.int64)


def _take(layer: Array, size: Array, budget: Budget) -> list[int]:
    """Experts that leave each layer: chunks in order while they fit the budget.

    After one that does not fit, a smaller first chunk of another layer may still fit; a later chunk
    of the same layer cannot, since only first chunks are smaller than the unit.
    """
    whole = int(np.searchsorted(np.cumsum(size), budget.remove_total, side="right"))
    rows = len(budget.num_experts)
    leave_L = np.bincount(layer[:whole], weights=size[:whole], minlength=rows).astype(np.int64)
    left = budget.remove_total - int(leave_L.sum())
    for row, count in zip(layer[whole:], size[whole:], strict=True):
        if left == 0:
            break
        if count <= left:
            leave_L[row] += count
            left -= int(count)
    return [int(count) for count in leave_L]


def domain_loss(mass_DLE: Array, keep_LE: Mask) -> Array:
    """Share of each domain's router mass that the removed experts held (MESA, Alg. 1, line 4).

    Args:
        mass_DLE: (D, L, E) float64, not negative; any scale, compared within a domain only.
        keep_LE: (L, E) bool, True = the expert stays.

    Returns:
        (D,) float64 in [0, 1]; a domain of zeros, as norms of dead experts give, has 0 to lose.
    """
    removed_D = np.where(keep_LE, 0.0, mass_DLE).sum(axis=(1, 2))
    all_D = mass_DLE.sum(axis=(1, 2))
    return np.asarray(np.divide(removed_D, all_D, out=np.zeros(all_D.shape), where=all_D > 0))


def jaccard(removed_LE: Mask, other_LE: Mask) -> float:
    """Overlap of two sets of removed experts: |A ∩ B| / |A ∪ B|; 1 = the same set.

    Args:
        removed_LE: (L, E) bool, True = the expert leaves; False beyond a narrow layer's experts.
        other_LE: (L, E) bool, the same for the other plan.
    """
    either = np.count_nonzero(removed_LE | other_LE)
    return np.count_nonzero(removed_LE & other_LE) / either if either else 1.0


def real_LE(num_experts: tuple[int, ...]) -> Mask:
    """(L, E) bool, True where a layer has an expert of that number."""
    return np.arange(max(num_experts))[None, :] < np.array(num_experts)[:, None]

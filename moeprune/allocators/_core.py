"""Which experts are already decided: what no plan better than a known one can change.

For prices ν of every block and μ of an expert in any layer, the sum of all reduced costs c - ν that
are negative, with what blocks and layers then owe each other, is a lower bound of any plan's
weighted loss. A plan that goes against one reduced cost loses at least that much more. Where this
is more than the limit allows, the expert is decided (reduced-cost fixing); the others are the core.

D domains, L MoE layers, N experts, G router groups, B = L · G blocks, S experts of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeprune.allocators._problem import Problem
from moeprune.core.choice import Mask
from moeprune.core.stats import Array

_ROUNDING = 1e-11  # relative


@dataclass(frozen=True, slots=True)
class Core:
    """What is left to decide.

    Attributes:
        free_N: (N,) bool, True = undecided.
        leave_N: (N,) bool, True = leaves in every plan that is good enough.
    """

    free_N: Mask
    leave_N: Mask


def core_of(problem: Problem, weight_D: Array, *, limit: float) -> Core:
    """Decide what can be decided, for plans whose worst domain loses at most ``limit``.

    Args:
        problem: what may leave.
        weight_D: (D,) weights of the domains, not negative, that sum to 1.
        limit: a worst-domain loss.
    """
    cost_N = problem.cost_N(weight_D)
    ids_BS, sorted_BS = problem.sorted_BS(cost_N)
    real = np.zeros(cost_N.size, dtype=np.bool_)
    real[ids_BS] = True
    real[-1] = False
    closed_B = np.repeat(problem.max_slices_L == 0, problem.budget.num_groups)
    real[ids_BS[closed_B]] = False
    stay_N, leave_N = ~real, np.zeros_like(real)
    for last in (True, False):  # prices of the last expert that leaves, of the first that stays
        price_BS, least = _priced(problem, sorted_BS, last=last)
        # Prices may be far larger than the limit, and then their rounding is what counts.
        rounding = _ROUNDING * (limit + problem.total * float(np.abs(price_BS).max()))
        slack = limit - least + rounding
        above_BS = sorted_BS - price_BS
        stay_N[ids_BS[(above_BS > slack) & np.isfinite(sorted_BS)]] = True
        leave_N[ids_BS[-above_BS > slack]] = True
    stay_N, leave_N = stay_N[:-1], leave_N[:-1]
    return Core(~stay_N & ~leave_N, leave_N)


def _priced(problem: Problem, sorted_BS: Array, *, last: bool) -> tuple[Array, float]:
    """The price of every block, (B, 1), and the lower bound that the prices prove."""
    groups = problem.budget.num_groups
    leave_L, _ = problem.slices_L(sorted_BS)
    rows = np.arange(len(sorted_BS))
    leave_B = np.repeat(leave_L, groups)
    padded = np.pad(sorted_BS, ((0, 0), (0, 1)), constant_values=np.inf)
    next_B = padded[rows, leave_B]
    low_B = np.where(leave_B > 0, padded[rows, leave_B - 1], -np.inf)
    if problem.uniform:
        first_B = np.where(np.isfinite(next_B), next_B, low_B)
        price_B = np.where(leave_B > 0, low_B if last else first_B, 0.0)
        owed = float(price_B @ leave_B)
    else:
        most_L = problem.max_slices_L
        low_L, next_L = (each_B.reshape(-1, groups).sum(axis=1) for each_B in (low_B, next_B))
        open_L = ~problem.fixed_L
        group_price = _last_or_next(
            low_L[open_L & (leave_L > 0)], next_L[open_L & (leave_L < most_L)], last=last
        )
        price_B = _split(group_price, low_B, next_B, groups, full_L=leave_L == most_L, last=last)
        over_L = price_B.reshape(-1, groups).sum(axis=1) - group_price
        # A layer that loses exactly so many owes them whether they are dear or cheap.
        owed = float(np.where(open_L, np.minimum(over_L, 0.0), over_L) @ most_L)
        owed += group_price * problem.total / groups
    gain_BS = np.minimum(sorted_BS - price_B[:, None], 0.0)
    return price_B[:, None], float(gain_BS.sum()) + owed


def _last_or_next(taken: Array, coming: Array, *, last: bool) -> float:
    """The price of the last slice that leaves, or of the first that stays: G · μ."""
    if taken.size and (last or not coming.size):
        return float(taken.max())
    return float(coming.min()) if coming.size else 0.0


def _split(
    group_price: float, low_B: Array, next_B: Array, groups: int, *, full_L: Mask, last: bool
) -> Array:
    """Share the price of a slice among the blocks of a layer, within what keeps their choice."""
    low_LG, next_LG = low_B.reshape(-1, groups), next_B.reshape(-1, groups)
    even = group_price / groups
    low_LG = np.where(np.isfinite(low_LG), low_LG, np.minimum(even, next_LG))
    next_LG = np.where(np.isfinite(next_LG), next_LG, np.maximum(even, low_LG))
    room_L = (next_LG - low_LG).sum(axis=1)
    share_L = np.clip(
        np.divide(
            group_price - low_LG.sum(axis=1), room_L, out=np.zeros(room_L.shape), where=room_L > 0
        ),
        0.0,
        1.0,
    )
    if last:  # a full layer takes nobody from elsewhere: its own last expert sets the price
        share_L = np.where(full_L, 0.0, share_L)
    return np.asarray((low_LG + share_L[:, None] * (next_LG - low_LG)).reshape(-1))

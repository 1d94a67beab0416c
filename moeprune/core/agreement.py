"""How far two plans agree beyond chance.

Two plans that remove n of a layer's E experts each, picked at random, share n²/E of them. What is
stated here is measured against that.

L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeprune.core.choice import Mask
from moeprune.core.stats import Array


def shared_by_chance_L(one_LE: Mask, other_LE: Mask, num_experts: Sequence[int]) -> Array:
    """Experts that two random plans share in each layer, on average, given how many each removes.

    Args:
        one_LE: (L, E) bool, True = the expert leaves; False beyond a narrow layer's experts.
        other_LE: the same of the other plan.
        num_experts: (L,) experts of each layer.

    Returns:
        (L,) float64: the mean of a hypergeometric distribution.
    """
    return np.asarray(one_LE.sum(axis=1) * other_LE.sum(axis=1) / np.array(num_experts))


def overlap_by_chance(one_LE: Mask, other_LE: Mask, num_experts: Sequence[int]) -> float:
    """Jaccard overlap of two plans that share as much as random ones do on average."""
    shared = float(shared_by_chance_L(one_LE, other_LE, num_experts).sum())
    either = float(one_LE.sum() + other_LE.sum()) - shared
    return shared / either if either else 1.0


def agreement(one_LE: Mask, other_LE: Mask, num_experts: Sequence[int]) -> float:
    """Shared experts above chance, over the most that could be shared above chance.

    Returns:
        1 = the plans are as equal as their counts per layer allow, 0 = as random plans, below 0 =
        they avoid each other. 1 where chance leaves no room.
    """
    chance = float(shared_by_chance_L(one_LE, other_LE, num_experts).sum())
    most = float(np.minimum(one_LE.sum(axis=1), other_LE.sum(axis=1)).sum())
    shared = float((one_LE & other_LE).sum())
    return (shared - chance) / (most - chance) if most > chance else 1.0

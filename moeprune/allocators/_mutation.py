"""Level switches: the only mutation of EvoESAP; the sum of a genome never changes.

L MoE layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeprune.allocators._space import Levels

ATTEMPTS = 32  # draws of a child, good and rejected ones together


def below(rng: np.random.RandomState, limit: int) -> int:
    """A number in 0..limit-1.

    Made from ``random_sample``, whose stream numpy promises on every platform.
    """
    return min(int(rng.random_sample() * limit), limit - 1)


def mutated(
    parent: Levels, top: Levels, *, delta: int, mutations: int, rng: np.random.RandomState
) -> Levels:
    """A child: the parent after a few level switches.

    The smaller of two draws of 1..``mutations`` says how many. Each takes 1..``delta`` units from a
    layer and gives them to another; one that would leave the bounds is drawn again.

    Args:
        parent: (L,) levels.
        top: (L,) the most of each layer.
        delta: the most units that move at once.
        mutations: the most switches.
        rng: what the draws come from.
    """
    child = list(parent)
    switches = min(1 + below(rng, mutations), 1 + below(rng, mutations))
    for _ in range(ATTEMPTS):
        if not switches:
            break
        givers = [row for row, level in enumerate(child) if level]
        takers = [row for row, level in enumerate(child) if level < top[row]]
        if not givers or not takers:
            break
        giver, taker = _one_of(givers, rng), _one_of(takers, rng)
        moved = 1 + below(rng, delta)
        if giver != taker and child[giver] >= moved and child[taker] + moved <= top[taker]:
            child[giver] -= moved
            child[taker] += moved
            switches -= 1
    return tuple(child)


def _one_of(rows: Sequence[int], rng: np.random.RandomState) -> int:
    return rows[below(rng, len(rows))]

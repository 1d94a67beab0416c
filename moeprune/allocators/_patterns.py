"""The twelve genomes that an EvoESAP search starts from: shapes over depth with one sum.

L MoE layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from moeprune.allocators._space import Levels, Space
from moeprune.core.stats import Array

UNIFORM = "uniform"
RANDOM = "random"

_GUARD = 9  # digits: a last bit of a power must not decide a plan


def _tent(num_layers: int) -> Array:
    """From 0 at both ends to 1 in the middle."""
    place_L = np.arange(num_layers) / max(num_layers - 1, 1)
    return np.asarray(1 - np.abs(2 * place_L - 1))


def _quarter(num_layers: int) -> Array:
    return np.where(np.arange(num_layers) < max(1, num_layers // 4), 2.0, 1.0)


# Weights of the layers, first to last; a heavier layer loses more.
WEIGHTS: Mapping[str, Callable[[int], Array]] = {
    "up": lambda n: np.arange(1.0, n + 1),
    "down": lambda n: np.arange(1.0, n + 1)[::-1],
    "mid": lambda n: 0.1 + _tent(n),
    "mid-neg": lambda n: 1.1 - _tent(n),
    "front-heavy": lambda n: 0.7 ** np.arange(n),
    "back-heavy": lambda n: 1.3 ** np.arange(n),
    "block-early": _quarter,
    "block-late": lambda n: _quarter(n)[::-1],
    "alt": lambda n: np.where(np.arange(n) % 2 == 0, 2.0, 1.0),
    "deep-flat": lambda n: 0.5 + 0.5 * _tent(n),
}
PATTERNS = (UNIFORM, RANDOM, *WEIGHTS)


def pattern(name: str, space: Space, rng: np.random.RandomState) -> Levels:
    """One starting genome.

    Args:
        name: one of ``PATTERNS``.
        space: what is allowed.
        rng: where ``random`` draws its weights from; the others draw nothing.
    """
    if name == UNIFORM:
        return space.levels(space.start)
    num_layers = len(space.top)
    weight_L = rng.random_sample(num_layers) if name == RANDOM else WEIGHTS[name](num_layers)
    # Times what a layer can lose, so that a narrow layer gets its share and not its fill.
    return spread(space.total, weight_L * np.array(space.top), space.top)


def spread(total: int, weight_L: Array, top: Levels) -> Levels:
    """Share out units in proportion to weights.

    What the whole parts leave over goes to the largest fractional parts, one each, and then round
    robin to layers that have room.

    Args:
        total: units to share out, at most the sum of ``top``.
        weight_L: (L,) float64, not negative.
        top: (L,) the most that each layer takes.
    """
    assert 0 <= total <= sum(top)
    whole = float(weight_L.sum())
    share_L = np.round(total * weight_L / whole if whole else 0 * weight_L, _GUARD)
    level_L = [min(int(share), most) for share, most in zip(share_L, top, strict=True)]
    left = total - sum(level_L)
    by_fraction = np.argsort(-np.round(share_L % 1, _GUARD), kind="stable")
    order = [int(row) for row in by_fraction]
    while left:
        for row in order:
            if left and level_L[row] < top[row]:
                level_L[row] += 1
                left -= 1
        order = list(range(len(top)))
    return tuple(level_L)

"""Eight bits with a dynamic exponent: how bitsandbytes keeps scales that are quantised themselves.

Of a number's seven bits beside the sign, leading zeros count powers of ten and the rest cut the
decade into equal parts (Dettmers, "8-bit approximations for parallelism in deep learning", 2015).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

BLOCK = 256
_EXPONENTS = 7
_STEPS = 65535

Floats = np.ndarray[Any, np.dtype[np.float32]]


def values() -> Floats:
    """The 256 numbers, ascending: 127 below zero, zero, and 128 above."""
    found = [0.0, 1.0]
    for exponent in range(_EXPONENTS):
        edges = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32)
        middles = (edges[:-1] + edges[1:]) / 2
        decade = 10 ** (exponent - _EXPONENTS + 1)
        found += [*(decade * middles).tolist(), *(-decade * middles).tolist()]
    return np.sort(np.array(found, np.float32))


def quantised(numbers: Floats) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Floats]:
    """Codes of numbers: of each over the largest of its block, the nearest of :func:`values`.

    bitsandbytes looks the nearest up in a table of 65536 equal steps from -1 to 1, and so does
    this: near the middle of two values, and near zero, the code may be the neighbour's.

    Args:
        numbers: (n,) finite.

    Returns:
        (n,) codes, and the largest absolute value of every block of 256, the last may be shorter.
    """
    blocks = -(-len(numbers) // BLOCK)
    padded = np.zeros(blocks * BLOCK, np.float32)
    padded[: len(numbers)] = numbers
    largest = np.abs(padded).reshape(blocks, BLOCK).max(axis=1)
    whole = np.repeat(np.where(largest > 0, largest, np.float32(1)), BLOCK)[: len(numbers)]
    steps = (numbers / whole + np.float32(1)) * np.float32(_STEPS / 2)
    nearest = _nearest(np.linspace(-1, 1, _STEPS + 1))
    return nearest[(steps + np.float32(0.5)).astype(np.int64)], largest


def _nearest(numbers: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    table = values().astype(np.float64)
    return np.searchsorted((table[1:] + table[:-1]) / 2, numbers).astype(np.uint8)

"""Write one weight in a scheme, and say how far what loaders read is from what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

import moeprune.quant.schemes as schemes
from moeprune import plugins
from moeprune.core.quantisation import SchemeOptions, WeightError
from moeprune.quant._reading import Bytes

if TYPE_CHECKING:
    import torch

_ROW = 512
# Of mean squares: no square that matters is then too small or too large for float32.
_SAFE = (1e-24, 1e24)

Numbers = Callable[[Sequence[Bytes]], "torch.Tensor"]
"""From the bytes of stored pieces to the weight that they mean, (out, in)."""


@cache
def scheme(name: str) -> ModuleType:
    """The file of ``quant/schemes``; the folder is looked through once.

    Raises:
        UsageError: there is no such file.
    """
    return plugins.load(schemes, name)


def encoded(
    name: str,
    weight: torch.Tensor,
    options: SchemeOptions,
) -> tuple[Sequence[Bytes], WeightError]:
    """The bytes of a weight, and how far their numbers are from its own.

    Args:
        name: of a file of ``quant/schemes``.
        weight: (out, in) of a floating type.
        options: of the scheme.

    Raises:
        UnsupportedModelError: the scheme cannot hold a number of it.
    """
    plugin = scheme(name)
    weight = weight.contiguous()
    parts = plugin.encode(weight, options)
    return parts, difference(weight, plugin.numbers(parts, tuple(weight.shape), options))


def difference(weight: torch.Tensor, read: Iterable[torch.Tensor]) -> WeightError:
    """How far ``read`` is from ``weight``.

    Args:
        weight: of a floating type.
        read: its numbers in order, in runs of any length.
    """
    import torch

    flat, start = weight.reshape(-1), 0
    room = torch.empty(0)
    error_sq = norm_sq = 0.0
    for run in read:
        if run.numel() > room.numel():
            room = torch.empty(run.numel())
        values = room[: run.numel()].copy_(flat[start : start + run.numel()])
        start += run.numel()
        norm_sq += _sum_of_squares(values.numpy())
        error_sq += _sum_of_squares(values.sub_(run.reshape(-1)).numpy())
    return WeightError(error_sq, norm_sq, weight.numel())


def _sum_of_squares(values: np.ndarray[Any, np.dtype[np.float32]]) -> float:
    """Summed in float32 by rows, and over rows in float64; all in it where squares leave it."""
    whole = len(values) // _ROW * _ROW
    rows, rest = values[:whole].reshape(-1, _ROW), values[whole:].astype(np.float64)
    with np.errstate(over="ignore"):
        found = float(np.vecdot(rows, rows).sum(dtype=np.float64) + rest @ rest)
    if _SAFE[0] < found / max(len(values), 1) < _SAFE[1]:
        return found
    double = values.astype(np.float64)
    return float(np.square(double, out=double).sum())


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread each, where several weights are encoded at once."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Write one weight in a scheme, and say how far what loaders read is from what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import moeprune.quant.schemes as schemes
from moeprune import plugins
from moeprune.core.quantisation import SchemeOptions, WeightError
from moeprune.quant._reading import Bytes

if TYPE_CHECKING:
    import torch

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
    """How far ``read`` is from ``weight``. Sums are float64.

    Args:
        weight: of a floating type.
        read: its numbers in order, in runs of any length.
    """
    import torch

    flat, start = weight.reshape(-1), 0
    narrow, wide = torch.empty(0), torch.empty(0, dtype=torch.float64)
    error_sq = norm_sq = 0.0
    for run in read:
        if run.numel() > narrow.numel():
            narrow, wide = narrow.new_empty(run.numel()), wide.new_empty(run.numel())
        values = narrow[: run.numel()].copy_(flat[start : start + run.numel()])
        start += run.numel()
        double = wide[: run.numel()].copy_(values)
        norm_sq += float(torch.dot(double, double))
        double.copy_(values.sub_(run.reshape(-1)))
        error_sq += float(torch.dot(double, double))
    return WeightError(error_sq, norm_sq, weight.numel())


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

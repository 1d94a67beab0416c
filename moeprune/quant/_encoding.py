"""Write one weight in a scheme, and say how far what loaders read is from what it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import moeprune.quant.schemes as schemes
from moeprune import plugins
from moeprune.core.quantisation import SchemeOptions, WeightError

if TYPE_CHECKING:
    import torch

Numbers = Callable[[Sequence[bytes]], "torch.Tensor"]
"""From the bytes of stored pieces to the weight that they mean, (out, in)."""


def encoded(
    scheme: str,
    weight: torch.Tensor,
    options: SchemeOptions,
) -> tuple[Sequence[bytes | memoryview], WeightError]:
    """The bytes of a weight, and how far their numbers are from its own.

    Args:
        scheme: name of a file of ``quant/schemes``.
        weight: (out, in) of a floating type.
        options: of the scheme.

    Raises:
        UnsupportedModelError: the scheme cannot hold a number of it.
    """
    plugin = plugins.load(schemes, scheme)
    parts = plugin.encode(weight, options)
    return parts, difference(weight, plugin.decode(parts, tuple(weight.shape), options))


def difference(weight: torch.Tensor, read: torch.Tensor) -> WeightError:
    """How far ``read`` is from ``weight``; both (out, in) of floating types. Sums are float64."""
    import torch

    norms = [
        float(torch.linalg.vector_norm(values, dtype=torch.float64))
        for values in (weight.float() - read.float(), weight.float())
    ]
    return WeightError(norms[0] ** 2, norms[1] ** 2, weight.numel())

"""8-bit integers, a scale for every 128 inputs: compressed-tensors ``pack-quantized``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from moeprune.core.quantisation import SchemeOptions
from moeprune.quant._reading import Bytes
from moeprune.quant._written import Written
from moeprune.quant.schemes import _integers
from moeprune.quant.schemes._fit import whole

BITS = 8
METHOD = _integers.METHOD
_DEFAULT_GROUP = 128


def group_size(shapes: Collection[tuple[int, ...]], wanted: int | None) -> int:
    """``wanted``, or the largest size up to 128 that divides the inputs of all weights.

    Args:
        shapes: (out, in) of every weight.
        wanted: what was asked for, or None.

    Raises:
        UnsupportedModelError: inputs that it does not divide, or that fill no whole int32.
    """
    return _integers.group_size(shapes, wanted, bits=BITS, default=_DEFAULT_GROUP)


def parts(shape: tuple[int, ...], options: SchemeOptions) -> list[tuple[str, str, tuple[int, ...]]]:
    """Packed numbers, scales, and the weight's shape."""
    return _integers.parts(shape, options, bits=BITS)


def encode(weight: torch.Tensor, options: SchemeOptions) -> list[memoryview]:
    """The bytes of a weight (out, in).

    Raises:
        UnsupportedModelError: a number is not finite, or too large for the scales' type.
    """
    return _integers.encode(weight, options, bits=BITS)


def numbers(
    parts: Sequence[Bytes], shape: tuple[int, ...], options: SchemeOptions
) -> Iterator[torch.Tensor]:
    """What loaders make of the bytes, in order, a run at a time; one lasts until the next."""
    return _integers.numbers(parts, shape, options, bits=BITS)


def decode(parts: Sequence[Bytes], shape: tuple[int, ...], options: SchemeOptions) -> torch.Tensor:
    """What loaders make of the bytes: (out, in) float32."""
    return whole(numbers(parts, shape, options), shape)


def settings(written: Written) -> dict[str, Any]:
    """``quantization_config`` of config.json."""
    return _integers.settings(written, bits=BITS)

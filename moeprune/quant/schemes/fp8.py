"""Eight-bit floats (E4M3), a scale for every square block: DeepSeek's ``fp8``.

The scale of a block is max |w| / 448, float32; a number is w / scale, rounded to the nearest E4M3.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from moeprune.core.quantisation import SchemeOptions
from moeprune.errors import UnsupportedModelError
from moeprune.quant._reading import raw_bytes, tensor_of
from moeprune.quant._written import Written
from moeprune.quant.schemes._fit import (
    Shape,
    as_bytes,
    check_finite,
    dtype_of,
    first_that_fits,
    row_blocks,
)
from moeprune.quant.schemes._names import all_plain

BITS = 8
METHOD = "fp8"
_SIZES = (128, 64, 32, 16, 8)
_LARGEST = 448.0  # of E4M3
_SMALLEST = 2.0**-149  # of float32: no scale may become 0


def group_size(shapes: Collection[tuple[int, ...]], wanted: int | None) -> int:
    """Side of a block: ``wanted``, or the largest up to 128 that divides every side of a weight.

    A side may be shorter than a block, where no block divides it; loaders tell blocks from the
    number of scales, so no other rest is possible.

    Args:
        shapes: (out, in) of every weight.
        wanted: what was asked for, or None.

    Raises:
        UnsupportedModelError: a side that is longer than the block and no multiple of it.
    """
    if wanted is None:
        for size in _SIZES:
            if all(side % size == 0 for shape in shapes for side in shape):
                return size
    return first_that_fits(
        shapes,
        wanted,
        scheme="fp8",
        sizes=_SIZES,
        fits=lambda shape, size: all(side % size == 0 or side < size for side in shape),
    )


def parts(shape: tuple[int, ...], options: SchemeOptions) -> list[tuple[str, str, tuple[int, ...]]]:
    """Numbers, and the scales of their blocks."""
    rows, columns = _block(shape, options)
    grid = (shape[0] // rows, shape[1] // columns)
    return [("weight", "F8_E4M3", tuple(shape)), ("weight_scale_inv", "F32", grid)]


def encode(weight: torch.Tensor, options: SchemeOptions) -> list[memoryview]:
    """The bytes of a weight (out, in).

    Raises:
        UnsupportedModelError: a number is not finite, or at the very end of its type.
    """
    shape = tuple(weight.shape)
    rows, columns = _block(shape, options)
    numbers = torch.empty(shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty((shape[0] // rows, shape[1] // columns), dtype=torch.float32)
    for some in row_blocks(shape, rows):
        values = weight[some].to(torch.float32).reshape(-1, rows, shape[1] // columns, columns)
        peaks = values.abs().amax(-1).amax(1)
        check_finite(peaks)
        scale = (peaks / _LARGEST).clamp_(min=_SMALLEST).masked_fill_(peaks == 0, 1.0)
        scales[some.start // rows : some.stop // rows] = scale
        # More than 448 has no code but that of NaN.
        found = torch.div(values, scale[:, None, :, None]).clamp_(-_LARGEST, _LARGEST)
        numbers[some] = found.to(torch.float8_e4m3fn).reshape(-1, shape[1])
    if not bool(torch.isfinite((scales * _LARGEST).to(dtype_of(options.dtype))).all()):
        raise UnsupportedModelError(
            f"it holds numbers that are too large for {options.dtype}. Check the checkpoint."
        )
    return [as_bytes(numbers), as_bytes(scales)]


def decode(
    parts: Sequence[bytes | memoryview], shape: tuple[int, ...], options: SchemeOptions
) -> torch.Tensor:
    """What loaders make of the bytes: (out, in) float32."""
    rows, columns = _block(shape, options)
    grid = (shape[0] // rows, shape[1] // columns)
    codes = raw_bytes(parts[0]).reshape(tuple(shape))
    scales = tensor_of(parts[1], "F32", grid)
    # Looked up: several times faster than torch's own conversion.
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    values = torch.empty(tuple(shape), dtype=torch.float32)
    for some in row_blocks(tuple(shape), rows):
        found = table.index_select(0, codes[some].reshape(-1).to(torch.int32))
        found = found.reshape(-1, rows, grid[1], columns)
        found *= scales[some.start // rows : some.stop // rows, None, :, None]
        values[some] = found.reshape(-1, shape[1])
    return values


def settings(written: Written) -> dict[str, Any]:
    """``quantization_config`` of config.json."""
    size = written.options.group_size
    return {
        "quant_method": METHOD,
        "activation_scheme": "dynamic",
        "weight_block_size": [size, size],
        "modules_to_not_convert": all_plain(written),
    }


def _block(shape: Shape, options: SchemeOptions) -> tuple[int, int]:
    return min(options.group_size, shape[0]), min(options.group_size, shape[1])

"""Eight-bit floats (E4M3), a scale for every square block: DeepSeek's ``fp8``.

The scale of a block is max |w| / 448, float32; a number is w / scale, rounded to the nearest E4M3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from moeprune.core.quantisation import SchemeOptions
from moeprune.errors import UnsupportedModelError
from moeprune.quant._reading import Bytes, raw_bytes, tensor_of
from moeprune.quant._written import Written
from moeprune.quant.schemes._fit import (
    as_bytes,
    dtype_of,
    first_that_fits,
    in_groups,
    peaks_of,
    runs,
    scratch,
    whole,
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
    rows, columns = _block(weight.shape, options)
    groups = in_groups(weight, columns)
    across = weight.shape[1] // columns
    peaks = peaks_of(groups).view(-1, rows, across).amax(1)
    scales = (peaks / _LARGEST).clamp_(min=_SMALLEST).masked_fill_(peaks == 0, 1.0)
    if not bool(torch.isfinite((scales * _LARGEST).to(dtype_of(options.dtype))).all()):
        raise UnsupportedModelError(
            f"it holds numbers that are too large for {options.dtype}. Check the checkpoint."
        )
    divisors = scales.repeat_interleave(rows, 0).view(-1, 1)
    codes = torch.empty(groups.shape, dtype=torch.float8_e4m3fn)
    room = scratch(*groups.shape)
    for run in runs(*groups.shape):
        values = room[: run.stop - run.start].copy_(groups[run]).div_(divisors[run])
        # More than 448 has no code but that of NaN.
        codes[run] = values.clamp_(-_LARGEST, _LARGEST)
    return [as_bytes(codes), as_bytes(scales)]


def numbers(
    parts: Sequence[Bytes], shape: tuple[int, ...], options: SchemeOptions
) -> Iterator[torch.Tensor]:
    """What loaders make of the bytes, in order, a run at a time; one lasts until the next."""
    rows, columns = _block(shape, options)
    codes = raw_bytes(parts[0]).view(-1, columns)
    scales = tensor_of(parts[1], "F32", (shape[0] // rows, shape[1] // columns))
    scales = scales.repeat_interleave(rows, 0).view(-1, 1)
    # Looked up: several times faster than torch's own conversion.
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    for run in runs(*codes.shape):
        found = table.index_select(0, codes[run].reshape(-1).to(torch.int32))
        yield found.view(-1, columns).mul_(scales[run])


def decode(parts: Sequence[Bytes], shape: tuple[int, ...], options: SchemeOptions) -> torch.Tensor:
    """What loaders make of the bytes: (out, in) float32."""
    return whole(numbers(parts, shape, options), shape)


def settings(written: Written) -> dict[str, Any]:
    """``quantization_config`` of config.json."""
    size = written.options.group_size
    return {
        "quant_method": METHOD,
        "activation_scheme": "dynamic",
        "weight_block_size": [size, size],
        "modules_to_not_convert": all_plain(written),
    }


def _block(shape: Sequence[int], options: SchemeOptions) -> tuple[int, int]:
    return min(options.group_size, shape[0]), min(options.group_size, shape[1])

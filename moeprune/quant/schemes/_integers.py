"""Symmetric integers in groups, packed as compressed-tensors' ``pack-quantized`` has them.

b bits, groups of g consecutive inputs. The scale of a group is max |w| / ((2^b − 1) / 2), stored in
the model's type; a number is w / scale (of the scale as it is stored), rounded half to even and
held between −2^(b−1) and 2^(b−1) − 1. Stored is that plus 2^(b−1), the first one in the lowest bits
of an int32.
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
from moeprune.quant.schemes._names import ignored

METHOD = "compressed-tensors"
_WORD = 32
_BYTE = 8


def group_size(shapes: Collection[Shape], wanted: int | None, *, bits: int, default: int) -> int:
    """The group size for all weights; see the folder's contract."""
    sizes = [size for size in (128, 64, 32, 16, 8) if size <= default]
    return first_that_fits(
        shapes,
        wanted,
        scheme=f"int{bits}",
        sizes=sizes,
        fits=lambda shape, size: shape[1] % size == 0 and shape[1] * bits % _WORD == 0,
    )


def parts(
    shape: Shape, options: SchemeOptions, *, bits: int
) -> list[tuple[str, str, tuple[int, ...]]]:
    """What a weight becomes; see the folder's contract."""
    rows, columns = shape
    return [
        ("weight_packed", "I32", (rows, columns * bits // _WORD)),
        ("weight_scale", _stored(options), (rows, columns // options.group_size)),
        ("weight_shape", "I64", (2,)),
    ]


def encode(weight: torch.Tensor, options: SchemeOptions, *, bits: int) -> list[memoryview]:
    """The bytes of a weight.

    Args:
        weight: (out, in) of a floating type.
        options: the group size, and the type of the scales.
        bits: 4 or 8.

    Raises:
        UnsupportedModelError: a number is not finite, or too large for the scales' type.
    """
    rows, columns = weight.shape
    half = 2 ** (bits - 1)
    groups = columns // options.group_size
    dtype = dtype_of(options.dtype)
    packed = torch.empty((rows, columns * bits // _BYTE), dtype=torch.uint8)
    scales = torch.empty((rows, groups), dtype=dtype)
    for block in row_blocks((rows, columns)):
        values = weight[block].to(torch.float32).reshape(-1, groups, options.group_size)
        peaks = values.abs().amax(-1)
        check_finite(peaks)
        scale = _scales(peaks, 2 * half - 1, dtype)
        scales[block] = scale
        codes = torch.div(values, scale.to(torch.float32).unsqueeze(-1)).round_()
        codes = codes.clamp_(-half, half - 1).add_(half).to(torch.uint8).flatten(1)
        packed[block] = codes if bits == _BYTE else _pairs(codes)
    if not bool(torch.isfinite(scales * half).all()):
        raise UnsupportedModelError(
            f"it holds numbers that are too large for {options.dtype}. Check the checkpoint."
        )
    shape = torch.tensor([rows, columns], dtype=torch.int64)
    return [as_bytes(packed), as_bytes(scales), as_bytes(shape)]


def decode(
    parts: Sequence[bytes | memoryview], shape: Shape, options: SchemeOptions, *, bits: int
) -> torch.Tensor:
    """The numbers that loaders make of the bytes, float32 (out, in), not rounded to their type."""
    rows, columns = shape
    packed = raw_bytes(parts[0]).reshape(rows, -1)
    groups = columns // options.group_size
    scales = tensor_of(parts[1], _stored(options), (rows, groups)).to(torch.float32)
    values = torch.empty((rows, columns), dtype=torch.float32)
    for block in row_blocks((rows, columns)):
        codes = packed[block]
        if bits != _BYTE:
            codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)
        numbers = (
            codes.to(torch.float32).sub_(2 ** (bits - 1)).reshape(-1, groups, options.group_size)
        )
        values[block] = numbers.mul_(scales[block].unsqueeze(-1)).flatten(1)
    return values


def group(bits: int, size: int, targets: Sequence[str]) -> dict[str, Any]:
    """One of the ``config_groups`` of compressed-tensors.

    Args:
        bits: of a number.
        size: of a group.
        targets: module classes, or ``re:`` and a pattern of module names.
    """
    return {
        "targets": list(targets),
        "format": "pack-quantized",
        "input_activations": None,
        "output_activations": None,
        "weights": {
            "num_bits": bits,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": size,
            "dynamic": False,
            "actorder": None,
            "block_structure": None,
            "observer": "minmax",
            "observer_kwargs": {},
        },
    }


def packed_settings(groups: Sequence[dict[str, Any]], ignore: Sequence[str]) -> dict[str, Any]:
    """``quantization_config`` of config.json.

    Args:
        groups: from :func:`group`.
        ignore: names of modules, or patterns of them, that are not quantised.
    """
    return {
        "quant_method": METHOD,
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": list(ignore),
        "config_groups": {f"group_{number}": one for number, one in enumerate(groups)},
    }


def settings(written: Written, *, bits: int) -> dict[str, Any]:
    """``quantization_config`` of config.json; see the folder's contract."""
    one = group(bits, written.options.group_size, ["Linear"])
    return packed_settings([one], ignored(written))


def _stored(options: SchemeOptions) -> str:
    return options.dtype if options.dtype in ("BF16", "F16") else "F32"


def _scales(peaks: torch.Tensor, levels: int, dtype: torch.dtype) -> torch.Tensor:
    """Scales in their stored type; those of groups of zeros are that type's epsilon."""
    scale = (peaks / (levels / 2)).to(dtype)
    # Below the smallest normal number the steps of the type are wide: rounding down would cut off
    # the largest numbers of the group, or leave a scale of 0.
    low = (scale < torch.finfo(dtype).tiny) & (scale.to(torch.float32) * (levels / 2) < peaks)
    if bool(low.any()):
        bits = scale.view(torch.int32 if dtype is torch.float32 else torch.int16)
        scale = (bits + low.to(bits.dtype)).view(dtype)
    return scale.masked_fill_(peaks == 0, torch.finfo(dtype).eps)


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    """Two numbers of 4 bits in each byte, the first in the low half."""
    both = codes.view(torch.int16)  # first + 256 second
    return (both | (both >> 4)).to(torch.uint8)

"""Symmetric integers in groups, packed as compressed-tensors' ``pack-quantized`` has them.

b bits, groups of g consecutive inputs. The scale of a group is max |w| / ((2^b − 1) / 2), stored in
the model's type; a number is w / scale (of the scale as it is stored), rounded half to even and
held between −2^(b−1) and 2^(b−1) − 1. Stored is that plus 2^(b−1), the first one in the lowest bits
of an int32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from moeprune.core.quantisation import SchemeOptions
from moeprune.errors import UnsupportedModelError
from moeprune.quant._reading import Bytes, raw_bytes, tensor_of
from moeprune.quant._written import Written
from moeprune.quant.schemes._fit import (
    Shape,
    as_bytes,
    dtype_of,
    first_that_fits,
    in_groups,
    peaks_of,
    runs,
    scratch,
)
from moeprune.quant.schemes._names import ignored

METHOD = "compressed-tensors"
_WORD = 32
_BYTE = 8

Codes = np.ndarray[Any, np.dtype[np.uint8]]


def group_size(shapes: Collection[Shape], wanted: int | None, *, bits: int, default: int) -> int:
    """The group size for all weights; see the folder's contract."""
    sizes = [size for size in (128, 64, 32, 16, 8) if size <= default]
    return first_that_fits(
        shapes,
        wanted,
        scheme=f"int{bits}",
        sizes=sizes,
        fits=lambda shape, size: (
            shape[1] % size == 0 and shape[1] * bits % _WORD == 0 and size * bits % _BYTE == 0
        ),
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
    size, half = options.group_size, 2 ** (bits - 1)
    groups = in_groups(weight, size)
    peaks = peaks_of(groups)
    scales = _scales(peaks, 2 * half - 1, dtype_of(options.dtype))
    if not bool(torch.isfinite(scales * half).all()):
        raise UnsupportedModelError(
            f"it holds numbers that are too large for {options.dtype}. Check the checkpoint."
        )
    divisors = scales.to(torch.float32).unsqueeze(-1)
    packed = np.empty((len(groups), size * bits // _BYTE), np.uint8)
    room = scratch(*groups.shape)
    for run in runs(*groups.shape):
        values = room[: run.stop - run.start].copy_(groups[run]).div_(divisors[run])
        values.round_().clamp_(-half, half - 1).add_(half)
        codes = values.numpy().astype(np.uint8)
        packed[run] = codes if bits == _BYTE else _pairs(codes)
    shape = torch.tensor(weight.shape, dtype=torch.int64)
    return [packed.reshape(-1).data, as_bytes(scales), as_bytes(shape)]


def numbers(
    parts: Sequence[Bytes], shape: Shape, options: SchemeOptions, *, bits: int
) -> Iterator[torch.Tensor]:
    """The numbers that loaders make of the bytes; see the folder's contract."""
    size = options.group_size
    count = shape[0] * shape[1] // size
    packed = raw_bytes(parts[0]).view(count, -1)
    scales = tensor_of(parts[1], _stored(options), (count, 1)).to(torch.float32)
    half = 2 ** (bits - 1)
    room = scratch(count, size)
    # Both numbers of a byte are looked up at once, as the halves of a float64.
    code = torch.arange(256)
    pairs = torch.stack([code & 15, code >> 4], dim=-1).sub_(half).to(torch.float32)
    for run in runs(count, size):
        if bits == _BYTE:
            values = room[: run.stop - run.start].copy_(packed[run]).sub_(half)
        else:
            found = (
                pairs.view(torch.float64)
                .view(-1)
                .index_select(0, packed[run].reshape(-1).to(torch.int32))
            )
            values = found.view(torch.float32).view(-1, size)
        yield values.mul_(scales[run])


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


def _pairs(codes: Codes) -> Codes:
    """Two numbers of 4 bits in each byte, the first in the low half."""
    both = codes.view("<u2")  # first + 256 second
    found: Codes = (both | (both >> 4)).astype(np.uint8)
    return found

"""Four bits whose 16 values are quantiles of a normal distribution: bitsandbytes' NF4.

A weight is a row of numbers, out after out, cut into blocks of 64. Of each block the largest
absolute value is kept; a number is stored as the value nearest to it over that (QLoRA, Dettmers et
al. 2023, section 3). Doubly quantised, those largest values less their mean are kept in 8 bits.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from moeprune.core.quantisation import SchemeOptions
from moeprune.quant._reading import Bytes, raw_bytes, tensor_of
from moeprune.quant._written import Written
from moeprune.quant.schemes import _dynamic
from moeprune.quant.schemes._fit import (
    NAMES,
    Shape,
    dtype_of,
    first_that_fits,
    in_groups,
    peaks_of,
    runs,
    scratch,
    whole,
)
from moeprune.quant.schemes._names import skipped

BITS = 4
METHOD = "bitsandbytes"
_SIZES = (64, 32)
_ACCEPTED = frozenset({32, 64, 128, 256, 512, 1024, 2048, 4096})  # by bitsandbytes 0.50
# A reciprocal of less would be infinite.
_SMALLEST = np.float32(1e-38)
# The mean of the largest values is not known before the weight is read: room for any float.
_OFFSET_ROOM = 24

VALUES = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)


def group_size(shapes: Collection[tuple[int, ...]], wanted: int | None) -> int:
    """``wanted``, or the first of 64 and 32 that divides the inputs of every weight.

    Where neither does, blocks go on from one output to the next: :func:`caveat`.

    Args:
        shapes: (out, in) of every weight.
        wanted: what was asked for, or None.

    Raises:
        UnsupportedModelError: a size that bitsandbytes does not have, that does not divide the
            inputs, or without one asked for, that leaves a rest.
    """
    inside = [size for size in _SIZES if all(shape[1] % size == 0 for shape in shapes)]
    if wanted is None and inside:
        return inside[0]
    return first_that_fits(
        shapes,
        wanted,
        scheme="nf4",
        sizes=_SIZES,
        fits=lambda shape, size: (
            size in _ACCEPTED
            and shape[1] % 2 == 0
            and (shape[1] if wanted else shape[0] * shape[1]) % size == 0
        ),
    )


def caveat(shapes: Collection[tuple[int, ...]], options: SchemeOptions) -> str | None:
    """What whoever loads the weights must know, in one line; None: nothing.

    Args:
        shapes: (out, in) of every weight.
        options: with which they are written.
    """
    size = options.group_size
    odd = sorted(shape[1] for shape in shapes if shape[1] % size)
    if not odd:
        return None
    odd.sort(key=lambda inputs: inputs % min(_SIZES) == 0)  # of 16 and 32 inputs it is the 16
    return (
        f"nf4: no block divides {odd[0]} inputs, so blocks of {size} numbers span outputs. "
        "bitsandbytes 0.50 reads such weights wrongly on processors with AVX-512, and rightly on "
        "GPUs; moeprune's loader reads them rightly everywhere."
    )


def parts(shape: tuple[int, ...], options: SchemeOptions) -> list[tuple[str, str, tuple[int, ...]]]:
    """Packed numbers, and what stands beside them."""
    count = shape[0] * shape[1]
    blocks = count // options.group_size
    kind = "U8" if options.double_quant else "F32"
    found: list[tuple[str, str, tuple[int, ...]]] = [
        ("weight", "U8", (count // 2, 1)),
        ("weight.absmax", kind, (blocks,)),
        ("weight.quant_map", "F32", (len(VALUES),)),
    ]
    if options.double_quant:
        found += [
            ("weight.nested_absmax", "F32", (-(-blocks // _dynamic.BLOCK),)),
            ("weight.nested_quant_map", "F32", (256,)),
        ]
    state = _state(shape, options, 0.0)
    return [*found, ("weight.quant_state.bitsandbytes__nf4", "U8", (len(state),))]


def encode(weight: torch.Tensor, options: SchemeOptions) -> list[memoryview]:
    """The bytes of a weight (out, in).

    Raises:
        UnsupportedModelError: a number is not finite.
    """
    groups = in_groups(weight, options.group_size)
    largest = peaks_of(groups).numpy()
    factors = torch.from_numpy(np.float32(1) / np.maximum(largest, _SMALLEST)).unsqueeze(-1)
    packed = np.empty((len(groups), options.group_size // 2), np.uint8)
    bounds = (VALUES[1:] + VALUES[:-1]) / np.float32(2)
    room = scratch(*groups.shape)
    for run in runs(*groups.shape):
        values = room[: run.stop - run.start].copy_(groups[run]).mul_(factors[run])
        both = _counted(values.numpy(), bounds).view("<u2")  # first + 256 second
        packed[run] = (both << 4 | both >> 8).astype(np.uint8)
    beside: list[np.ndarray[Any, Any]] = [largest, VALUES]
    offset = 0.0
    if options.double_quant:
        # Summed in float64: the same whatever the number of threads and the width of vectors.
        mean = np.float32(largest.mean(dtype=np.float64))
        codes, peaks_of_largest = _dynamic.quantised(largest - mean)
        beside = [codes, VALUES, peaks_of_largest, _dynamic.values()]
        offset = float(mean)
    state = np.frombuffer(_state(tuple(weight.shape), options, offset), np.uint8)
    return [part.reshape(-1).view(np.uint8).data for part in (packed, *beside, state)]


def numbers(
    parts: Sequence[Bytes], shape: tuple[int, ...], options: SchemeOptions
) -> Iterator[torch.Tensor]:
    """What loaders make of the bytes, in order, a run at a time; one lasts until the next."""
    packed = raw_bytes(parts[0]).view(-1, options.group_size // 2)
    largest = _largest(parts, len(packed), options).unsqueeze(-1)
    table = tensor_of(parts[2], "F32", (len(VALUES),))
    # Both numbers of a byte are looked up at once, as the halves of a float64.
    pairs = torch.stack([table.repeat_interleave(16), table.repeat(16)], dim=-1)
    for run in runs(len(packed), options.group_size):
        found = (
            pairs.view(torch.float64)
            .view(-1)
            .index_select(0, packed[run].reshape(-1).to(torch.int32))
        )
        yield found.view(torch.float32).view(-1, options.group_size).mul_(largest[run])


def decode(parts: Sequence[Bytes], shape: tuple[int, ...], options: SchemeOptions) -> torch.Tensor:
    """What loaders make of the bytes: (out, in) float32."""
    return whole(numbers(parts, shape, options), shape)


def settings(written: Written) -> dict[str, Any]:
    """``quantization_config`` of config.json."""
    return {
        "quant_method": METHOD,
        "load_in_4bit": True,
        "load_in_8bit": False,
        "_load_in_4bit": True,
        "_load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": NAMES[dtype_of(written.options.dtype)],
        "bnb_4bit_use_double_quant": written.options.double_quant,
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_threshold": 6.0,
        "llm_int8_skip_modules": skipped(written),
    }


def _counted(
    values: np.ndarray[Any, np.dtype[np.float32]], bounds: np.ndarray[Any, np.dtype[np.float32]]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """How many bounds each value exceeds; several times faster than a search."""
    codes: np.ndarray[Any, np.dtype[np.uint8]] = (values > bounds[0]).view(np.uint8)
    above = np.empty(values.shape, np.bool_)
    for bound in bounds[1:]:
        np.greater(values, bound, out=above)
        np.add(codes, above.view(np.uint8), out=codes)
    return codes


def _largest(parts: Sequence[Bytes], blocks: int, options: SchemeOptions) -> torch.Tensor:
    if not options.double_quant:
        return tensor_of(parts[1], "F32", (blocks,))
    codes = raw_bytes(parts[1]).to(torch.int64)
    scale = tensor_of(parts[3], "F32", (-1,)).repeat_interleave(_dynamic.BLOCK)[:blocks]
    table = tensor_of(parts[4], "F32", (256,))
    offset = float(json.loads(bytes(parts[5]))["nested_offset"])
    return table[codes].mul_(scale).add_(offset)


def _state(shape: Shape, options: SchemeOptions, offset: float) -> bytes:
    """What bitsandbytes keeps as JSON, as long for every offset: it is followed by spaces."""
    state: dict[str, Any] = {
        "quant_type": "nf4",
        "blocksize": options.group_size,
        "dtype": NAMES[dtype_of(options.dtype)],
        "shape": list(shape),
    }
    if not options.double_quant:
        return json.dumps(state).encode()
    state |= {"nested_blocksize": _dynamic.BLOCK, "nested_dtype": "float32"}
    length = len(json.dumps(state | {"nested_offset": 0.0})) - len("0.0") + _OFFSET_ROOM
    return json.dumps(state | {"nested_offset": offset}).ljust(length).encode()

"""Stored bytes to numbers, apart from any loader: so that what a loader makes of them is checked.

Only what is needed to know the size of an expert's weights; speed does not matter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moeprune.core.layout import TensorInfo

Array = npt.NDArray[np.float64]

_LARGEST_BLOCK = 1 << 20
NF4_STATE = "weight.quant_state.bitsandbytes__nf4"

_FP4 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@dataclass(frozen=True, slots=True)
class Raw:
    """One stored tensor, or the part of it that is one expert's.

    Attributes:
        info: its type and shape.
        data: its bytes.
    """

    info: TensorInfo
    data: bytes | bytearray | memoryview


def numbers(raw: Raw) -> Array:
    """The values of a tensor as its type says, float64, in its shape.

    One byte of E8M0, or of uint8, is itself; :func:`exponents` reads it as an exponent.
    """
    plain = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "i1"}
    if raw.info.dtype in plain:
        values = np.frombuffer(raw.data, plain[raw.info.dtype]).astype(np.float64)
    elif raw.info.dtype == "BF16":
        wide = np.frombuffer(raw.data, "<u2").astype(np.uint32) << 16
        values = wide.view(np.float32).astype(np.float64)
    else:
        codes = np.frombuffer(raw.data, np.uint8)
        values = e4m3()[codes] if raw.info.dtype == "F8_E4M3" else codes.astype(np.float64)
    return values.reshape(raw.info.shape)


def exponents(raw: Raw) -> Array:
    """Scales that are stored as exponents of two (E8M0), or the values themselves."""
    values = numbers(raw)
    return np.exp2(values - 127) if raw.info.dtype in ("U8", "F8_E8M0") else values


def fp4(raw: Raw) -> Array:
    """E2M1 numbers, two a byte of the last axis, the first one in the low half."""
    codes = np.frombuffer(raw.data, np.uint8).reshape(raw.info.shape)
    both = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
    values: Array = np.where(both & 8, -1.0, 1.0) * _FP4[both & 7]
    return values


def unpacked(raw: Raw, columns: int) -> Array | None:
    """Signed integers of 4 or 8 bits in rows of int32 words, the first one in the lowest bits.

    Other widths have no whole number of values in a word; None for them.
    """
    words = np.frombuffer(raw.data, "<u4").reshape(raw.info.shape)
    bits = words.shape[-1] * 32 // max(columns, 1)
    if bits not in (4, 8):
        return None
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (words[..., None] >> shifts) & np.uint32(2**bits - 1)
    codes = codes.reshape(*words.shape[:-1], -1)[..., :columns]
    signed: Array = codes.astype(np.float64) - 2.0 ** (bits - 1)
    return signed


def nf4(parts: Mapping[str, Raw]) -> Array:
    """Bitsandbytes' NF4: two numbers a byte, the first one in the high half.

    Raises:
        KeyError, ValueError: a part is missing, or is none.
    """
    state = nf4_state(parts)
    out, into = state["shape"]
    codes = np.frombuffer(parts["weight"].data, np.uint8)
    values = numbers(parts["weight.quant_map"])[np.stack([codes >> 4, codes & 15], axis=-1)]
    full = np.repeat(absmax(parts, state), int(state["blocksize"]))[: out * into]
    made: Array = values.reshape(-1)[: out * into] * full
    return made.reshape(out, into)


def nf4_state(parts: Mapping[str, Raw]) -> dict[str, Any]:
    """What the JSON beside an NF4 weight says.

    Raises:
        KeyError, ValueError: it is not there, or is none.
    """
    state: dict[str, Any] = json.loads(bytes(parts[NF4_STATE].data))
    for key in ("blocksize", "nested_blocksize"):
        if key in state and not 1 <= int(state[key]) <= _LARGEST_BLOCK:
            raise ValueError(f"{key} {state[key]!r}")
    return state


def absmax(parts: Mapping[str, Raw], state: Mapping[str, Any]) -> Array:
    """The scale of each block of NF4: stored, or from one byte each where it is quantised itself.

    In float32, as bitsandbytes computes it.
    """
    stored = parts["weight.absmax"]
    if "weight.nested_absmax" not in parts:
        return numbers(stored).reshape(-1)
    table = numbers(parts["weight.nested_quant_map"]).astype(np.float32)
    nested = numbers(parts["weight.nested_absmax"]).astype(np.float32).reshape(-1)
    codes = np.frombuffer(stored.data, np.uint8)
    steps = np.repeat(nested, int(state["nested_blocksize"]))[: codes.size]
    made = table[codes] * steps + np.float32(state["nested_offset"])
    return made.astype(np.float64)


def spread(scale: Array, shape: tuple[int, ...], block: tuple[int, int] | None = None) -> Array:
    """A grid of scales over a matrix: each for its block of rows and columns."""
    grid = scale.reshape(1, 1) if scale.size == 1 else scale.reshape(-1, scale.shape[-1])
    for axis, size in enumerate(shape):
        step = block[axis] if block and grid.shape[axis] > 1 else -(-size // grid.shape[axis])
        grid = np.repeat(grid, step, axis=axis).take(range(size), axis=axis)
    return grid


def e4m3() -> Array:
    """The values of all 256 codes of E4M3, float64; NaN among them."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    small = mantissa / 8 * 2.0**-6
    values = np.where(exponent == 0, small, (1 + mantissa / 8) * np.exp2(exponent - 7.0))
    values[(codes & 127) == 127] = math.nan
    return np.where(codes & 128, -values, values)


def plain_weight(parts: Mapping[str, Raw], settings: Mapping[str, object]) -> Array | None:
    """The weight that the stored tensors of one linear map stand for.

    Args:
        parts: suffix -> tensor, of one expert: ``weight``, ``weight_packed``, ``blocks``, ….
        settings: the quantisation settings.

    Returns:
        (out, in) float64, or None for a layout that this does not read.
    """
    if "blocks" in parts and "scales" in parts:
        values = fp4(parts["blocks"])
        return values * exponents(parts["scales"])[..., None]
    if "weight.absmax" in parts:
        return nf4(parts) if NF4_STATE in parts else None
    scale = next((parts[name] for name in _SCALES if name in parts), None)
    if "weight_packed" in parts and scale is not None:
        return _packed(parts, scale)
    weight = parts.get("weight")
    if weight is None or len(weight.info.shape) != 2 or weight.info.dtype not in _READ:
        return None
    if scale is None:
        return numbers(weight) if weight.info.dtype in ("F32", "F16", "BF16") else None
    # Two FP4 numbers a byte have no type of their own; whole INT8 numbers have "weight_scale".
    halves = weight.info.dtype == "I8" and "weight_scale" not in parts
    values = fp4(weight) if halves else numbers(weight)
    block = settings.get("weight_block_size")
    pair = (block[0], block[1]) if isinstance(block, list) and len(block) == 2 else None
    return values * spread(exponents(scale), values.shape, pair)


_READ = ("F32", "F16", "BF16", "F8_E4M3", "I8")
_SCALES = ("weight_scale_inv", "weight_scale", "scale", "qscale_weight")


def _packed(parts: Mapping[str, Raw], scale: Raw) -> Array | None:
    values: Array | None
    if "weight_zero_point" in parts or "weight_g_idx" in parts:
        return None
    if parts["weight_packed"].info.dtype == "U8":
        values = fp4(parts["weight_packed"])
    elif "weight_shape" in parts:
        values = unpacked(parts["weight_packed"], int(numbers(parts["weight_shape"])[-1]))
    else:
        return None
    if values is None:
        return None
    full = spread(exponents(scale), values.shape)
    whole = parts.get("weight_global_scale")
    return values * (full if whole is None else full / numbers(whole).reshape(()))

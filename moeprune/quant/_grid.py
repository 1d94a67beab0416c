"""A quantised matrix, read apart from the code that writes it: numbers in units of their scales.

Every scheme gives a scale to a group of numbers; seen as (groups, numbers of one), or as blocks of
a matrix, it is one product. Written for numpy from the descriptions of the formats, so that what
``quant/schemes`` writes is checked by something that it has no part in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprune.quant._floats import to_dtype
from moeprune.quant._numbers import NF4_STATE, Raw, absmax, e4m3, nf4_state, numbers

Values = npt.NDArray[np.float32]

# QLoRA (arXiv 2305.14314), appendix E: quantiles of the normal distribution, 0 among them.
NF4 = np.array(
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
    dtype=np.float32,
)


BITS = {"int8": 8, "int4": 4}
NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_TYPES = {
    "weight_packed": ("I32",),
    "weight_scale": ("BF16", "F16", "F32"),
    "weight_shape": ("I64",),
    "weight_scale_inv": ("F32",),
    "weight.quant_map": ("F32",),
    "weight.nested_absmax": ("F32",),
    "weight.nested_quant_map": ("F32",),
    NF4_STATE: ("U8",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The numbers of one stored matrix.

    Attributes:
        shape: of the matrix, (out, in).
        units: numbers in units of their scale; of int8 and int4 whole ones.
        codes: indices of ``units`` into ``table``, where there is one.
        scale: of each group, broadcastable to ``units``.
        table: the numbers that a code may be, ascending; None: whole ones.
        top: the largest size of a number.
    """

    shape: tuple[int, int]
    units: Values
    scale: Values
    top: float
    table: Values | None = None
    codes: npt.NDArray[np.uint8] | None = None

    def arranged(self, weight: Values) -> Values:
        """A matrix (out, in) in the arrangement of ``units``; what it lacks is zero."""
        flat = weight
        if self.units.ndim == 2:
            flat = np.zeros(self.units.size, np.float32)
            flat[: weight.size] = weight.reshape(-1)
        return flat.reshape(self.units.shape)

    @property
    def group_axes(self) -> tuple[int, ...]:
        """The axes of ``units`` that share a scale."""
        return (1, 3) if self.units.ndim == 4 else (self.units.ndim - 1,)

    @property
    def values(self) -> Values:
        """The matrix (out, in) that the stored numbers stand for, float32."""
        made: Values = (self.units * self.scale).reshape(-1)[: math.prod(self.shape)]
        return made.reshape(self.shape)


def nf4_grid(parts: Mapping[str, Raw]) -> Grid:
    """Of bitsandbytes' NF4: two numbers a byte, the first one in the high half.

    Args:
        parts: suffix -> tensor: ``weight``, ``weight.absmax`` ….

    Raises:
        ValueError, KeyError: the parts are not those of one NF4 matrix.
    """
    state = nf4_state(parts)
    out, into = state["shape"]
    size = int(state["blocksize"])
    packed = np.frombuffer(parts["weight"].data, np.uint8)
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[: out * into]
    blocks = -(-codes.size // size)
    if blocks * size > codes.size:  # the last block is short: zeros, code 7
        codes = np.concatenate([codes, np.full(blocks * size - codes.size, 7, np.uint8)])
    codes = codes.reshape(blocks, size)
    table = numbers(parts["weight.quant_map"]).astype(np.float32)
    scale = absmax(parts, state).astype(np.float32).reshape(blocks, 1)
    return Grid(
        shape=(out, into), units=table[codes], scale=scale, top=1.0, table=table, codes=codes
    )


def int_grid(parts: Mapping[str, Raw], bits: int) -> Grid:
    """Of compressed-tensors' pack-quantized: 8 or 4 bits in rows of int32 words.

    Raises:
        ValueError, KeyError: the parts are not those of one such matrix.
    """
    out, into = (int(size) for size in np.frombuffer(parts["weight_shape"].data, "<i8"))
    words = parts["weight_packed"]
    packed = np.frombuffer(words.data, np.uint8).reshape(out, -1)  # little-endian: lowest first
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(out, -1)
    whole = packed[:, :into].astype(np.float32) - np.float32(1 << (bits - 1))
    scale = numbers(parts["weight_scale"]).astype(np.float32)
    groups = scale.shape[-1]
    return Grid(
        shape=(out, into),
        units=whole.reshape(out, groups, into // groups),
        scale=scale.reshape(out, groups, 1),
        top=float((1 << bits) - 1) / 2,
    )


def fp8_grid(parts: Mapping[str, Raw]) -> Grid:
    """Of E4M3 numbers in blocks with ``weight_scale_inv``.

    Raises:
        ValueError, KeyError: the parts are not those of one such matrix.
    """
    weight = parts["weight"]
    out, into = weight.info.shape
    scale = numbers(parts["weight_scale_inv"]).astype(np.float32)
    rows, columns = scale.shape
    codes = np.frombuffer(weight.data, np.uint8)
    shape = (rows, out // rows, columns, into // columns)
    # Code order is not number order: indices into the ascending table of all finite numbers.
    every = e4m3().astype(np.float32)
    table = np.unique(every[np.isfinite(every)])
    place = np.searchsorted(table, np.nan_to_num(every)).astype(np.uint8)
    return Grid(
        shape=(out, into),
        units=every[codes].reshape(shape),
        scale=scale.reshape(rows, 1, columns, 1),
        top=448.0,
        table=table,
        codes=place[codes].reshape(shape),
    )


def stored_names(scheme: str, *, double_quant: bool = False) -> tuple[str, ...]:
    """What follows a map's name in the names of all that a scheme stores of it."""
    if scheme == "fp8":
        return ("weight", "weight_scale_inv")
    if scheme != "nf4":
        return ("weight_packed", "weight_scale", "weight_shape")
    nested = ("weight.nested_absmax", "weight.nested_quant_map") if double_quant else ()
    return ("weight", "weight.absmax", "weight.quant_map", *nested, NF4_STATE)


def layout_problem(scheme: str, parts: Mapping[str, Raw], shape: tuple[int, ...]) -> str:
    """What is wrong with the types and shapes that a matrix is stored in, or "".

    Args:
        scheme: that it is stored in.
        parts: suffix -> tensor, as they lie in the export.
        shape: (out, in).
    """
    nested = "weight.nested_absmax" in parts
    types = {
        **_TYPES,
        "weight": ("F8_E4M3",) if scheme == "fp8" else ("U8",),
        "weight.absmax": ("U8",) if nested else ("F32",),
    }
    shapes = {"weight": shape if scheme == "fp8" else (-(-math.prod(shape) // 2), 1)}
    if scheme in BITS:
        shapes["weight_shape"] = (2,)
        shapes["weight_packed"] = (shape[0], -(-shape[1] * BITS[scheme] // 32))
    for name, raw in parts.items():
        count = math.prod(raw.info.shape)
        flat = (shape[0], count // shape[0]) if name == "weight_scale" else (count,)
        wanted = shapes.get(name, raw.info.shape if name == "weight_scale_inv" else flat)
        if raw.info.dtype not in types[name] or raw.info.shape != wanted:
            return (
                f"{name} is {raw.info.dtype} {list(raw.info.shape)} where {scheme} has "
                f"{' or '.join(types[name])} {list(wanted)}"
            )
    return ""


def grid_of(scheme: str, parts: Mapping[str, Raw]) -> Grid:
    """The numbers of one matrix that ``scheme`` has written.

    Args:
        scheme: ``"nf4"``, ``"int8"``, ``"int4"`` or ``"fp8"``.
        parts: suffix -> tensor, as they lie in the export.

    Raises:
        ValueError, KeyError: the parts are not those of such a matrix.
    """
    if scheme == "nf4":
        return nf4_grid(parts)
    if scheme == "fp8":
        return fp8_grid(parts)
    return int_grid(parts, BITS[scheme])


def loaded_values(scheme: str, parts: Mapping[str, Raw], *, natively: bool) -> Values:
    """The matrix (out, in) that loaders make of what a scheme stores, float32.

    transformers' own multiply in the type that is stored: of integers, that of the scales, of NF4
    the one that is noted beside the weight; FP8 has float32. moeprune's reader of integers
    multiplies in float32.

    Args:
        scheme: that it is stored in.
        parts: suffix -> tensor, as they lie in the export.
        natively: whether transformers reads integers by itself.
    """
    values = grid_of(scheme, parts).values
    if scheme in BITS and natively:
        return to_dtype(values, parts["weight_scale"].info.dtype)
    if scheme == "nf4":
        return to_dtype(values, NAMES[str(nf4_state(parts)["dtype"])])
    return values

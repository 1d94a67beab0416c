"""Whether a stored matrix is the quantised one of the source: scales, nearest numbers, the error.

Nothing is quantised here. A number passes if no neighbour of it in its scheme lies nearer to the
source's, but for what dividing by a scale in the source's type may round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from moeprune.quant._floats import to_dtype
from moeprune.quant._grid import (
    BITS,
    NAMES,
    NF4,
    Grid,
    Values,
    grid_of,
    layout_problem,
    stored_names,
)
from moeprune.quant._numbers import Raw, absmax, nf4_state, numbers

# Half a unit in the last place, relative: what one operation in the type rounds.
_ROUNDING = {"BF16": 2.0**-8, "F16": 2.0**-11, "F32": 2.0**-24, "F64": 2.0**-24}
_SLACK = 1e-6
_DAMAGE = (LookupError, ValueError, TypeError, ArithmeticError, MemoryError, RecursionError)
# Of a scale in float32, which libraries divide in one way or another; of a narrower one, nothing.
_LAST_BITS = 2.0**-22
_STATE = {"quant_type", "blocksize", "dtype", "shape"}
_NESTED_STATE = {"nested_blocksize", "nested_dtype", "nested_offset"}
_SMALLEST = {"BF16": 2.0**-133, "F16": 2.0**-24, "F32": 2.0**-149}


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of one matrix.

    Attributes:
        problem: what is wrong with it, or "".
        error_sq: sum of the squared differences from the source.
        norm_sq: sum of the squares of the source.
    """

    problem: str
    error_sq: float = 0.0
    norm_sq: float = 0.0


def judged(
    scheme: str, parts: Mapping[str, Raw], weight: Values, *, dtype: str, group_size: int
) -> Judged:
    """Compare one stored matrix with the source's.

    Args:
        scheme: that it is stored in.
        parts: suffix -> tensor, as they lie in the export.
        weight: (out, in) float32: the source's.
        dtype: of the source, as safetensors spells it.
        group_size: numbers that share a scale (of fp8, side of a block).
    """
    if scheme not in (*BITS, "nf4", "fp8"):
        return Judged(f"is to be {scheme!r}, which is not known")
    due = stored_names(scheme, double_quant="weight.nested_absmax" in parts)
    if set(due) != set(parts):
        return Judged(f"has {', '.join(sorted(parts))} where {scheme} has {', '.join(due)}")
    wrong = layout_problem(scheme, parts, weight.shape)
    if wrong:
        return Judged(wrong)
    with np.errstate(all="ignore"):
        # What a damaged file may hold, a state that is JSON among it, fails in many ways.
        try:
            grid = grid_of(scheme, parts)
            other = grid.shape != weight.shape
            found = (
                f"states the shape {list(grid.shape)}, the source has {list(weight.shape)}"
                if other
                else next(_problems(scheme, parts, grid, weight, dtype, group_size), "")
            )
        except _DAMAGE as problem:
            return Judged(f"is no {scheme} matrix ({type(problem).__name__}: {problem})")
        if other:
            return Judged(found)
        off = (grid.values - weight).astype(np.float64).reshape(-1)
        whole = weight.astype(np.float64).reshape(-1)
    return Judged(found, float(np.dot(off, off)), float(np.dot(whole, whole)))


def _problems(
    scheme: str,
    parts: Mapping[str, Raw],
    grid: Grid,
    weight: Values,
    dtype: str,
    group_size: int,
) -> Iterator[str]:
    arranged = grid.arranged(weight)
    sizes = [grid.units.shape[axis] for axis in grid.group_axes]
    due = [group_size] * len(sizes)
    if scheme == "fp8":  # a matrix smaller than a block is one block
        due = [min(group_size, size) for size in weight.shape]
    if sizes != due:
        yield f"has groups of {sizes[-1]}, not {group_size}"
        return
    largest = np.abs(arranged).max(axis=grid.group_axes, keepdims=True)
    scale = grid.scale
    if scheme == "nf4":
        yield from _nf4_problems(parts, largest, dtype)
        # By this numbers were divided, also where it is quantised afterwards; a reciprocal of
        # less would be infinite.
        scale = np.maximum(largest, np.float32(1e-38))
    else:
        name = "weight_scale_inv" if scheme == "fp8" else "weight_scale"
        kind = parts[name].info.dtype
        least = max(_SMALLEST.get(kind, 0.0), _SMALLEST.get(dtype, 0.0))
        wanted = to_dtype(largest / np.float32(grid.top), kind)
        wrong = ~(np.abs(scale - wanted) <= _LAST_BITS * wanted + least)
        # A scale that would be 0 has another value; its numbers are 0.
        wrong &= ~((wanted <= least) & (scale > 0) & np.isfinite(scale))
        if wrong.any():
            at = int(np.argmax(wrong))
            yield (
                f"has a scale of {scale.flat[at]:.6g} where the largest number of its group makes "
                f"it {wanted.flat[at]:.6g}"
            )
    yield from _far(grid, arranged, scale, dtype)


def _far(grid: Grid, arranged: Values, scale: Values, dtype: str) -> Iterator[str]:
    """Whether a number is not the nearest that its scheme has."""
    ratio = np.divide(arranged, scale, out=np.zeros_like(arranged), where=scale != 0)
    slack = np.abs(ratio) * np.float32(max(1.02 * _ROUNDING[dtype], _SLACK)) + np.float32(_SLACK)
    if grid.table is None or grid.codes is None:
        near = np.abs(ratio - grid.units) <= slack + np.float32(0.5)
        # The scale is right; what lies above the largest number, it makes the largest.
        near |= (np.abs(grid.units) >= grid.top - 0.5) & (ratio / grid.units > 1)
        step = scale * np.float32(0.5)
    else:
        half = np.diff(grid.table) / 2
        below = np.concatenate([half[:1] * 0 + np.inf, half]).astype(np.float32)[grid.codes]
        above = np.concatenate([half, half[:1] * 0 + np.inf]).astype(np.float32)[grid.codes]
        off = ratio - grid.units
        near = (off <= above + slack) & (off >= -below - slack)
        step = np.minimum(below, above) * scale
    near |= (scale == 0) & (arranged == 0)
    if near.all():
        return
    at = np.unravel_index(int(np.argmin(near)), near.shape)
    stored = (grid.units * grid.scale)[at]
    yield (
        f"stores {stored:.6g} for {arranged[at]:.6g}, more than half a step away "
        f"({np.broadcast_to(step, near.shape)[at]:.3g})"
    )


def _nf4_problems(parts: Mapping[str, Raw], largest: Values, dtype: str) -> Iterator[str]:
    state = nf4_state(parts)
    nested = "weight.nested_absmax" in parts
    due_keys = _STATE | (_NESTED_STATE if nested else set())
    if set(state) != due_keys or state["dtype"] not in NAMES:
        yield f"has a quant_state {json.dumps(state)}, which bitsandbytes does not read"
        return
    if state.get("quant_type") != "nf4":
        yield f"states quant_type {state.get('quant_type')!r}, not 'nf4'"
    # Kernels have the numbers of NF4 in themselves and do not read this table.
    if not np.array_equal(numbers(parts["weight.quant_map"]).astype(np.float32), NF4):
        yield "has a quant_map that is not NF4's"
    have, due = absmax(parts, state).astype(np.float32), largest.reshape(-1)
    if not nested:
        if not np.array_equal(have, due):
            at = int(np.argmax(have != due))
            yield f"has an absmax of {have[at]:.6g} where {due[at]:.6g} is the largest"
        return
    # Of float16 weights, bitsandbytes subtracts the mean of the scales in float16.
    rounding = _ROUNDING["F16"] if dtype == "F16" else _ROUNDING["F32"]
    yield from _nested_problems(parts, state, have, due, 1e-5 + rounding)


def _nested_problems(
    parts: Mapping[str, Raw],
    state: Mapping[str, Any],
    have: Values,
    due: Values,
    rounding: float,
) -> Iterator[str]:
    """Scales less their mean, in blocks with a scale of their own, as numbers of a table."""
    offset = float(state["nested_offset"])
    mean = float(due.astype(np.float64).mean())
    span = float(np.abs(due - mean).max())
    if not abs(offset - mean) <= rounding * (abs(mean) + span):
        yield f"states nested_offset {offset:.6g} where the mean of its scales is {mean:.6g}"
    size = int(state["nested_blocksize"])
    blocks = -(-due.size // size)
    rest = np.zeros(blocks * size, np.float32)
    rest[: due.size] = due - np.float32(offset)
    largest = np.abs(rest.reshape(blocks, size)).max(axis=1)
    nested = numbers(parts["weight.nested_absmax"]).astype(np.float32).reshape(-1)
    if nested.shape != largest.shape or not np.allclose(
        nested, largest, rtol=1e-4, atol=rounding * abs(mean)
    ):
        yield "has a nested_absmax that is not the largest of its scales"
        return
    table = numbers(parts["weight.nested_quant_map"]).astype(np.float32)
    if table.shape != (256,) or not np.allclose(table, _dynamic(), rtol=1e-5, atol=0):
        yield "has a nested_quant_map that is not bitsandbytes'"
        return
    ratio = np.clip(rest[: due.size] / np.repeat(nested, size)[: due.size], -1, 1)
    right = np.clip(np.searchsorted(table, ratio), 1, 255)
    # bitsandbytes' kernel for CPUs is not exact near the middle of two: either of them is right.
    either = np.maximum(np.abs(table[right] - ratio), np.abs(table[right - 1] - ratio))
    step = either * np.repeat(nested, size)[: due.size]
    wrong = ~(np.abs(have - due) <= step + rounding * (np.abs(due) + span))
    wrong &= np.repeat(nested, size)[: due.size] > 0
    if wrong.any():
        at = int(np.argmax(wrong))
        yield f"has a quantised absmax of {have[at]:.6g} where {due[at]:.6g} is the largest"


def _dynamic() -> Values:
    """The numbers of eight bits with a dynamic exponent: decades, cut in 1, 2, 4, … equal parts."""
    found = [0.0, 1.0]
    for parts in range(7):
        edges = np.linspace(0.1, 1, 2**parts + 1)
        middles = 10.0 ** (parts - 6) * (edges[:-1] + edges[1:]) / 2
        found += [*middles, *-middles]
    return np.sort(np.array(found)).astype(np.float32)


def relative(error_sq: float, norm_sq: float) -> float:
    """Frobenius norm of the error over that of the source."""
    if not error_sq:
        return 0.0
    return math.sqrt(error_sq / norm_sq) if norm_sq else math.inf

"""Stored values times a constant: every code of a type against exact fractions, and torch."""

from __future__ import annotations

import io
import math
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeprune.checkpoint.audit_scaling import is_product
from moeprune.checkpoint.copying import Copier
from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.header import TensorEntry
from moeprune.checkpoint.scaling import as_factor, scaled, write_scaled
from moeprune.core.layout import TensorInfo
from moeprune.errors import CheckpointError, UnsupportedModelError

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16}
# Ones with many bits, with few, and one whose products with BF16 often end half way.
GAINS = (0.7, 0.5, 1.0 / 3.0, 1.0 + 2.0**-16, 0.50390625, 1.9999998807907104, 2.0**-20)


def every_code(dtype: str) -> bytes:
    codes = np.arange(1 << 16, dtype="<u2")
    values = torch.from_numpy(codes.astype(np.int32)).to(torch.int16).view(TORCH[dtype])
    return codes[torch.isfinite(values).numpy()].tobytes()


def numbers(data: bytes, dtype: str) -> list[float]:
    return torch.frombuffer(bytearray(data), dtype=TORCH[dtype]).double().tolist()


def nearest(exact: Fraction, grid: list[Fraction], codes: list[int]) -> set[int]:
    """Codes of the values nearest to ``exact``; of two the even one. By bisection, exactly."""
    low, high = 0, len(grid) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if grid[middle] <= exact else (low, middle)
    below, above = exact - grid[low], grid[high] - exact
    if below == above:
        return {codes[low] if codes[low] % 2 == 0 else codes[high]}
    return {codes[low] if below < above else codes[high]}


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_rounds_to_nearest_even(dtype: str, gain: float) -> None:
    """Of exact fractions; a sample of all codes, with every one that ends half way."""
    factor = as_factor(gain)
    data = every_code(dtype)
    values = numbers(data, dtype)
    positive = sorted(
        (Fraction(value), code)
        for value, code in zip(values, np.frombuffer(data, "<u2").tolist(), strict=True)
        if code < 1 << 15
    )
    grid, codes = [value for value, _ in positive], [code for _, code in positive]
    made = np.frombuffer(scaled(data, dtype, factor), "<u2").tolist()
    for place in range(0, len(values), 37):
        exact = abs(Fraction(values[place])) * Fraction(factor)
        if exact >= grid[-1]:
            continue
        assert {made[place] & 0x7FFF} == nearest(exact, grid, codes), values[place]
        assert made[place] >> 15 == int(math.copysign(1, values[place]) < 0)
    kept = np.frombuffer(data, "<u2")[np.abs(values) < float(grid[-1]) / 4].tobytes()
    assert is_product(kept, scaled(kept, dtype, factor), dtype, factor)


@pytest.mark.parametrize("gain", GAINS)
def test_bfloat16_equals_torch_from_float64(gain: float) -> None:
    """torch rounds float64 to bfloat16 through float32; so only where that is exact."""
    factor = as_factor(gain)
    data = every_code("BF16")
    exact = torch.tensor(numbers(data, "BF16"), dtype=torch.float64) * factor
    sure = exact.float().double() == exact
    made = torch.frombuffer(bytearray(scaled(data, "BF16", factor)), dtype=torch.bfloat16)
    torch.testing.assert_close(made[sure], exact[sure].bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_wide_types_are_the_machine_product(dtype: str) -> None:
    draw = np.random.default_rng(0)
    kind = "<f4" if dtype == "F32" else "<f8"
    values = (draw.standard_normal(4096) * np.exp2(draw.integers(-40, 40, 4096))).astype(kind)
    factor = as_factor(0.7)
    made = np.frombuffer(scaled(values.tobytes(), dtype, factor), kind)
    exact = [Fraction(float(value)) * Fraction(factor) for value in values]
    wanted = [float(np.array(float(value), kind)) for value in exact]
    assert made.tolist() == (wanted if dtype == "F64" else (values * np.float32(factor)).tolist())
    for value, product in zip(made.tolist(), exact, strict=True):
        around = (np.nextafter(kind_of(value, kind), s) for s in (-np.inf, np.inf))
        assert all(
            abs(Fraction(value) - product) <= abs(Fraction(float(near)) - product)
            for near in around
        )


def kind_of(value: float, kind: str) -> np.floating:
    return np.dtype(kind).type(value)


def infinite(data: bytes, dtype: str) -> int:
    kinds = {**TORCH, "F32": torch.float32, "F64": torch.float64}
    return int(torch.isinf(torch.frombuffer(bytearray(data), dtype=kinds[dtype])).sum())


@given(
    st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=64),
    st.floats(2.0**-7, 4, width=32),
    st.sampled_from(["BF16", "F16", "F32", "F64"]),
    st.integers(0, 63),
    st.integers(1, 3),
)
def test_the_audit_sees_one_wrong_bit(
    codes: list[int], gain: float, dtype: str, place: int, step: int
) -> None:
    width = {"F32": 2, "F64": 4}.get(dtype, 1)
    data = np.array((codes * width)[: len(codes) // width * width or width], "<u2")
    data = np.resize(data, -(-len(data) // width) * width).tobytes()
    made = scaled(data, dtype, gain)
    if infinite(made, dtype) > infinite(data, dtype):  # write_scaled refuses it
        assert gain > 1
        return
    assert is_product(data, made, dtype, gain)
    unsigned = np.frombuffer(made, {1: "<u2", 2: "<u4", 4: "<u8"}[width]).copy()
    place %= len(unsigned)
    kind = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}.get(dtype)
    if kind is not None and not np.isfinite(unsigned[place : place + 1].view(kind))[0]:
        return
    if dtype == "BF16" and unsigned[place] & 0x7F80 == 0x7F80:
        return
    unsigned[place] += unsigned.dtype.type(step)
    assert not is_product(data, unsigned.tobytes(), dtype, gain)
    assert not is_product(data, made[:-1], dtype, gain)


def written(values: np.ndarray, edit: TensorEdit, path: Path, *, offset: int = 24) -> bytes:
    path.write_bytes(b"\x7f" * offset + values.tobytes())
    info = TensorInfo(edit.info.dtype, values.shape, values.nbytes)
    entry = TensorEntry(info, path.name, offset, offset + values.nbytes)
    target = path.with_suffix(".out")
    counted: list[int] = []
    with path.open("rb", buffering=0) as source, target.open("wb", buffering=0) as out:
        write_scaled(Copier(out, counted.append), source, entry, edit)
    assert sum(counted) == target.stat().st_size
    return target.read_bytes()


def test_slices_and_padding_are_written_in_place(tmp_path: Path) -> None:
    values = np.arange(5 * 3 * 4, dtype="<f4").reshape(5, 3, 4) + 0.1
    edit = TensorEdit(
        source="w",
        target="w",
        info=TensorInfo("F32", (3, 3, 4), 3 * 48),
        ids=(0, 3),
        pad=1,
        factor=as_factor(0.7),
    )
    made = np.frombuffer(written(values, edit, tmp_path / "w.bin"), "<f4").reshape(3, 3, 4)
    wanted = values[[0, 3]] * np.float32(0.7)
    assert (made[:2] == wanted).all() and not made[2].any()


def test_more_than_one_chunk(tmp_path: Path) -> None:
    """9 MB in chunks of 4: the parts meet where they must."""
    values = np.random.default_rng(1).standard_normal((9 << 20) // 4 + 3).astype("<f4")
    edit = TensorEdit(
        source="w", target="w", info=TensorInfo("F32", values.shape, values.nbytes), factor=0.5
    )
    made = np.frombuffer(written(values, edit, tmp_path / "w.bin"), "<f4")
    assert (made == values * 0.5).all()


def test_a_weight_that_leaves_its_type_is_refused(tmp_path: Path) -> None:
    values = np.array([1.0, 60000.0], "<f2")
    edit = TensorEdit(source="big", target="big", info=TensorInfo("F16", (2,), 4), factor=1.5)
    with pytest.raises(CheckpointError, match=r"'big' times 1\.5 leaves the range of F16"):
        written(values, edit, tmp_path / "w.bin")


@pytest.mark.parametrize("gain", [0.0, -1.0, math.nan, math.inf, 1e-50, 1e50])
def test_no_gain_that_is_none(gain: float) -> None:
    with pytest.raises(UnsupportedModelError):
        as_factor(gain)


def test_a_source_cut_short_is_told(tmp_path: Path) -> None:
    path = tmp_path / "short.bin"
    path.write_bytes(bytes(10))
    entry = TensorEntry(TensorInfo("F32", (4,), 16), path.name, 0, 16)
    edit = TensorEdit(source="w", target="w", info=entry.info, factor=0.5)
    with path.open("rb", buffering=0) as source, pytest.raises(CheckpointError, match="ends early"):
        write_scaled(Copier(io.BytesIO(), lambda _: None), source, entry, edit)  # type: ignore[arg-type]


def test_memory_is_bounded_by_a_chunk(tmp_path: Path) -> None:
    values = np.ones((64 << 20) // 2, "<u2")  # 64 MB of bfloat16
    path, target = tmp_path / "w.bin", tmp_path / "w.out"
    path.write_bytes(values.tobytes())
    info = TensorInfo("BF16", values.shape, values.nbytes)
    entry = TensorEntry(info, path.name, 0, values.nbytes)
    edit = TensorEdit(source="w", target="w", info=info, factor=as_factor(0.7))
    tracemalloc.start()
    with path.open("rb", buffering=0) as source, target.open("wb", buffering=0) as out:
        write_scaled(Copier(out, lambda _: None), source, entry, edit)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert target.stat().st_size == values.nbytes and peak < 24 << 20

"""Stored matrices read and judged apart from what writes them, against the libraries' own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_weights import bnb_nf4, ct_pack, fp8_block, name_of, raws

from moeprune.core.layout import TensorInfo
from moeprune.quant import Raw, grid_of, judged, plain_tensor, plain_weight

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Stored = tuple[dict[str, torch.Tensor], torch.Tensor]
Case = tuple[str, int, Callable[[torch.Tensor], Stored]]

CASES: dict[str, Case] = {
    "nf4": ("nf4", 64, lambda w: bnb_nf4(w, nested=False)),
    "nf4-nested": ("nf4", 64, lambda w: bnb_nf4(w, nested=True)),
    "nf4-128": ("nf4", 128, lambda w: bnb_nf4(w, nested=False, block=128)),
    "int4": ("int4", 32, lambda w: ct_pack(w, bits=4, group=32)),
    "int8": ("int8", 128, lambda w: ct_pack(w, bits=8, group=128)),
    "int8-64": ("int8", 64, lambda w: ct_pack(w, bits=8, group=64)),
    "fp8": ("fp8", 128, lambda w: fp8_block(w, 128)),
    "fp8-32": ("fp8", 32, lambda w: fp8_block(w, 32)),
}


def weight(dtype: torch.dtype, shape: tuple[int, int] = (128, 256)) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.02
    made[3] = 0  # groups without a number
    made[4, 5] = 1.5  # and one number far from the others
    return made.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_what_the_libraries_write_is_right(name: str, dtype: torch.dtype) -> None:
    scheme, group, write = CASES[name]
    source = weight(dtype)
    stored, plain = write(source)
    parts = raws(stored)
    values = torch.from_numpy(grid_of(scheme, parts).values)
    assert torch.equal(values.to(plain.dtype), plain)
    for read in (plain_tensor(parts, {}), torch.from_numpy(np.asarray(plain_weight(parts, {})))):
        assert read is not None and read.shape == source.shape
        assert torch.allclose(read.double(), values.double(), rtol=1e-6, atol=0)
    found = judged(scheme, parts, source.float().numpy(), dtype=name_of(dtype), group_size=group)
    assert found.problem == ""
    off = (values.double() - source.double()).square().sum()
    assert found.error_sq == pytest.approx(float(off), rel=1e-6)
    assert found.norm_sq == pytest.approx(float(source.double().square().sum()), rel=1e-12)


def changes(stored: dict[str, torch.Tensor]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Every tensor with one of its values changed a little, by what was changed."""
    for name, tensor in stored.items():
        if "quant_state" in name or name == "weight_shape":
            continue
        for place in (0, tensor.numel() // 2, tensor.numel() - 1):
            made = tensor.clone()
            flat = made.view(torch.uint8).reshape(-1) if tensor.itemsize == 1 else made.reshape(-1)
            if made.dtype in (torch.uint8, torch.float8_e4m3fn) or made.dtype == torch.int32:
                flat[place] ^= 0x21 if name == "weight" else 0x11
            else:
                flat[place] = flat[place] * 1.03 + 1e-3
            yield f"{name}[{place}]", {**stored, name: made}


@pytest.mark.parametrize("name", CASES)
def test_one_changed_value_is_found(name: str) -> None:
    scheme, group, write = CASES[name]
    source = weight(torch.float32)
    seen = 0
    for what, stored in changes(write(source)[0]):
        found = judged(scheme, raws(stored), source.numpy(), dtype="F32", group_size=group)
        if what.startswith("weight.nested_quant_map"):
            continue  # a number of it that no scale uses
        assert found.problem, what
        assert "\n" not in found.problem
        seen += 1
    assert seen >= 6


@pytest.mark.parametrize("name", ["nf4", "nf4-nested"])
def test_what_bitsandbytes_reads_beside_the_numbers(name: str) -> None:
    """A key or a type that it does not know, and a number of a table that no scale uses."""
    scheme, group, write = CASES[name]
    source = weight(torch.float32)
    stored, _ = write(source)
    (key,) = [one for one in stored if "quant_state" in one]
    state = json.loads(bytes(stored[key].tolist()))
    told = [{(k if k != old else f"{old}_"): v for k, v in state.items()} for old in state]
    told += [{k: v for k, v in state.items() if k != old} for old in state]
    told += [{**state, "more": 1}, {**state, "dtype": "f32"}, {**state, "quant_type": "fp4"}]
    changed = [{**stored, key: torch.tensor(list(json.dumps(body).encode()))} for body in told]
    if name == "nf4-nested":
        table = stored["weight.nested_quant_map"]
        for place in (1, 100, 128, 254):
            made = table.clone()
            made[place] *= 1 + 2**-10
            changed.append({**stored, "weight.nested_quant_map": made})
    for one in changed:
        one[key] = one[key].to(torch.uint8)
        found = judged(scheme, raws(one), source.numpy(), dtype="F32", group_size=group)
        assert found.problem
    assert not judged(scheme, raws(stored), source.numpy(), dtype="F32", group_size=group).problem


@pytest.mark.parametrize("name", CASES)
def test_another_matrix_is_found(name: str) -> None:
    scheme, group, write = CASES[name]
    parts = raws(write(weight(torch.bfloat16))[0])
    other = weight(torch.bfloat16, (128, 256)).flip(0).float().numpy()
    assert judged(scheme, parts, other, dtype="BF16", group_size=group).problem
    right = weight(torch.bfloat16).float().numpy()
    assert judged(scheme, parts, right[:64], dtype="BF16", group_size=group).problem
    assert "groups" in judged(scheme, parts, right, dtype="BF16", group_size=16).problem
    for wrong in {"nf4", "int4", "int8", "fp8"} - {scheme}:
        assert judged(wrong, parts, right, dtype="BF16", group_size=group).problem


@pytest.mark.parametrize("shape", [(7, 33), (1, 5), (3, 64)])
@pytest.mark.parametrize("nested", [False, True])
def test_odd_shapes_of_nf4(shape: tuple[int, int], nested: bool) -> None:
    source = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    stored, plain = bnb_nf4(source, nested=nested)
    values = torch.from_numpy(grid_of("nf4", raws(stored)).values)
    assert torch.equal(values.bfloat16(), plain)
    found = judged("nf4", raws(stored), source.float().numpy(), dtype="BF16", group_size=64)
    assert found.problem == ""


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e4, 1e30])
@pytest.mark.parametrize("name", CASES)
def test_sizes(name: str, size: float) -> None:
    scheme, group, write = CASES[name]
    source = (weight(torch.float32) * size).bfloat16()
    if scheme == "fp8" and size == 1e-30:
        return  # the reference here keeps scales above 1e-12
    found = judged(
        scheme, raws(write(source)[0]), source.float().numpy(), dtype="BF16", group_size=group
    )
    assert found.problem == ""


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", CASES)
def test_damaged_files_are_one_line(name: str, data: st.DataObject) -> None:
    """Whatever a file holds, the answer is a problem or none; nothing is raised."""
    scheme, group, write = CASES[name]
    source = weight(torch.bfloat16, (64, 128))
    parts = raws(write(source)[0])
    for _ in range(data.draw(st.integers(1, 2))):
        key = data.draw(st.sampled_from(sorted(parts)))
        old = parts[key]
        dtype, shape, content = old.info.dtype, old.info.shape, bytearray(old.data)
        kind = data.draw(st.sampled_from(["type", "shape", "short", "byte", "state", "lost"]))
        if kind == "type":
            dtype = data.draw(st.sampled_from(["F32", "BF16", "U8", "I32", "I64", "F8_E4M3"]))
        elif kind == "shape":
            shape = tuple(data.draw(st.integers(0, 3)) for _ in shape)
        elif kind == "short":
            content = content[: data.draw(st.integers(0, len(content)))]
        elif kind == "byte" and content:
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        elif kind == "state" and "quant_state" in key:
            value = data.draw(st.sampled_from([None, 0, -1, 10**12, 1e300, "x", [], [1, 2, 3]]))
            said = {"quant_type": "nf4", "blocksize": group, "shape": [64, 128]}
            changed = data.draw(st.sampled_from([*said, "nested_blocksize", "nested_offset"]))
            content = bytearray(json.dumps({**said, changed: value}).encode())
        elif kind == "lost":
            del parts[key]
            break
        parts[key] = Raw(TensorInfo(dtype, shape, len(content)), bytes(content))
    found = judged(scheme, parts, source.float().numpy(), dtype="BF16", group_size=group)
    assert "\n" not in found.problem


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["int4", "int8", "fp8"])
def test_a_scale_that_is_a_little_off(name: str, dtype: torch.dtype) -> None:
    """By the last bit of a 16-bit one, by a thousandth of a float32 one."""
    scheme, group, write = CASES[name]
    source = weight(dtype)
    stored, _ = write(source)
    (key,) = [one for one in stored if "scale" in one]
    least = torch.finfo(stored[key].dtype).eps if stored[key].itemsize == 2 else 1e-3
    for place in (0, stored[key].numel() - 1):
        for factor in (1 - least, 1 + least):
            scales = stored[key].double()
            scales.view(-1)[place] *= factor
            made = {**stored, key: scales.to(stored[key].dtype)}
            assert not torch.equal(made[key], stored[key])
            found = judged(
                scheme,
                raws(made),
                source.float().numpy(),
                dtype=name_of(dtype),
                group_size=group,
            )
            assert "scale" in found.problem

"""NF4: the bytes of bitsandbytes, and what a slow reading of them says."""

from __future__ import annotations

import json
import math

import bitsandbytes.functional as bnb
import numpy as np
import pytest
import torch

from moeprune.checkpoint.header import nbytes_of
from moeprune.core.quantisation import SchemeOptions
from moeprune.errors import UnsupportedModelError
from moeprune.quant.schemes import nf4

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
STATE = "weight.quant_state.bitsandbytes__nf4"


def weight(shape, dtype, seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02
    made[0] = 0
    made[1, ::3] *= 40
    made[2] = 1e-30
    return made.to(TYPES[dtype])


def ours(values, options):
    made = nf4.encode(values, options)
    stated = nf4.parts(tuple(values.shape), options)
    assert [nbytes_of(kind, shape) for _, kind, shape in stated] == [len(part) for part in made]
    return {name: bytes(part) for (name, _, _), part in zip(stated, made, strict=True)}


def theirs(values, options):
    packed, state = bnb.quantize_4bit(
        values,
        blocksize=options.group_size,
        quant_type="nf4",
        compress_statistics=options.double_quant,
    )
    beside = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
    return {"weight": packed, **beside}, state


def raw(tensor):
    return bytes(tensor.contiguous().view(torch.uint8).reshape(-1).numpy())


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("size", [32, 64, 256])
@pytest.mark.parametrize("shape", [(48, 256), (3, 512), (96, 34)])
def test_the_bytes_are_those_of_bitsandbytes(dtype, size, shape):
    if shape[0] * shape[1] % size:
        shape = (shape[0], 2 * size)
    values = weight(shape, dtype)
    options = SchemeOptions(group_size=size, dtype=dtype)
    expected, state = theirs(values, options)
    made = ours(values, options)
    assert made == {name: raw(part) for name, part in expected.items()}
    stated = {name: part for name, _, part in nf4.parts(shape, options)}
    assert stated == {name: tuple(part.shape) for name, part in expected.items()}
    decoded = nf4.decode(list(made.values()), shape, options)
    assert torch.equal(
        decoded.to(values.dtype), bnb.dequantize_4bit(expected["weight"], state).reshape(shape)
    )


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("shape", [(48, 256), (7, 512), (130, 640)])
def test_doubly_quantised_bytes_are_those_of_bitsandbytes(dtype, shape):
    # Largest values whose mean has one value whatever the order of the sum: then all is equal.
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).clamp_(-3, 3)
    blocks = values.reshape(-1, 64)
    blocks[:, 5] = 4 + torch.arange(len(blocks)).float() % 17 / 8
    values = blocks.reshape(shape).to(TYPES[dtype])
    options = SchemeOptions(group_size=64, double_quant=True, dtype=dtype)
    expected, state = theirs(values, options)
    made = ours(values, options)
    as_json = bytes(raw(expected[STATE]))
    assert made[STATE].rstrip() == as_json
    assert {**made, STATE: as_json} == {name: raw(part) for name, part in expected.items()}
    decoded = nf4.decode(list(made.values()), shape, options)
    assert torch.equal(
        decoded.to(values.dtype), bnb.dequantize_4bit(expected["weight"], state).reshape(shape)
    )


def test_the_scales_of_any_weight_are_doubly_quantised_alike():
    shape = (256, 1024)
    options = SchemeOptions(group_size=64, double_quant=True, dtype="F32")
    values = weight(shape, "F32")
    made = ours(values, options)
    offset = json.loads(made[STATE])["nested_offset"]
    _, whole = theirs(values, options)
    assert offset == pytest.approx(whole.offset.item(), rel=3e-7)
    # The sum of bitsandbytes depends on the width of vectors; with our mean, its bytes are ours.
    _, plain = bnb.quantize_4bit(values, blocksize=64, quant_type="nf4")
    codes, state = bnb.quantize_blockwise(plain.absmax - np.float32(offset), blocksize=256)
    assert made["weight.absmax"] == raw(codes)
    assert made["weight.nested_absmax"] == raw(state.absmax)
    assert made["weight.nested_quant_map"] == raw(state.code)


def test_bitsandbytes_reads_a_state_that_is_followed_by_spaces():
    options = SchemeOptions(group_size=64, double_quant=True, dtype="BF16")
    shape = (64, 128)
    made = ours(weight(shape, "BF16"), options)
    kinds = {"U8": torch.uint8, "F32": torch.float32}
    tensors = {
        name: torch.frombuffer(bytearray(made[name]), dtype=kinds[kind]).reshape(full)
        for name, kind, full in nf4.parts(shape, options)
    }
    packed = tensors.pop("weight")
    state = bnb.QuantState.from_dict(tensors, device=torch.device("cpu"))
    read = bnb.dequantize_4bit(packed, state)
    assert made[STATE].endswith(b" ")
    assert torch.equal(read, nf4.decode(list(made.values()), shape, options).bfloat16())


def test_the_length_of_the_state_does_not_depend_on_the_weight():
    options = SchemeOptions(group_size=64, double_quant=True, dtype="F32")
    lengths = set()
    for size in (0.0, 1e-38, 1.1754943508222875e-38, 0.1, 3.2e38):
        values = torch.full((2, 64), size)
        made = ours(values, options)
        lengths.add(len(made[STATE]))
        assert json.loads(made[STATE])["nested_offset"] == np.float32(size)
    assert len(lengths) == 1


def by_hand(values, size):
    """Each number beside each of the sixteen."""
    code = nf4.VALUES.astype(np.float64)
    flat = values.double().numpy().reshape(-1, size)
    peaks = np.abs(flat).max(axis=1)
    decoded = np.zeros_like(flat)
    codes = np.full(flat.shape, 7)
    for block, (row, peak) in enumerate(zip(flat, peaks, strict=True)):
        for place, number in enumerate(row):
            if peak:
                codes[block, place] = np.abs(code - number / peak).argmin()
        decoded[block] = code[codes[block]] * peak
    codes = codes.reshape(-1, 2)
    return bytes((codes[:, 0] * 16 + codes[:, 1]).astype(np.uint8)), decoded.reshape(values.shape)


@pytest.mark.parametrize("dtype", list(TYPES))
def test_a_slow_encoder_in_numpy_agrees(dtype):
    values = weight((9, 128), dtype, seed=3)
    options = SchemeOptions(group_size=32, dtype=dtype)
    made = nf4.encode(values, options)
    packed, decoded = by_hand(values, 32)
    assert bytes(made[0]) == packed
    np.testing.assert_allclose(nf4.decode(made, (9, 128), options), decoded, rtol=1e-6, atol=0)


def test_double_quantisation_loses_little_more():
    values = weight((128, 512), "F32", seed=4)
    values[2] = 0
    lost = []
    for double in (False, True):
        options = SchemeOptions(group_size=64, double_quant=double, dtype="F32")
        decoded = nf4.decode(nf4.encode(values, options), (128, 512), options)
        lost.append(float((decoded - values).norm() / values.norm()))
    assert lost[0] < lost[1] < 1.05 * lost[0]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(double, bad):
    values = weight((64, 64), "BF16")
    values[40, 10] = bad
    with pytest.raises(UnsupportedModelError, match="NaN or infinity"):
        nf4.encode(values, SchemeOptions(group_size=64, double_quant=double))


@pytest.mark.parametrize(
    ("shapes", "wanted", "expected"),
    [
        ([(768, 2048), (2048, 768)], None, 64),
        ([(48, 34), (6, 32)], None, 32),
        ([(64, 128)], 128, 128),
        ([(128, 96), (96, 128)], None, 32),
        ([(64, 48), (48, 64)], None, 64),
    ],
)
def test_the_block_divides_every_weight(shapes, wanted, expected):
    assert nf4.group_size(shapes, wanted) == expected


def test_blocks_that_span_outputs_are_told_of():
    shapes = {(64, 48), (48, 64)}
    options = SchemeOptions(group_size=nf4.group_size(shapes, None))
    assert "no block divides 48 inputs, so blocks of 64 numbers" in nf4.caveat(shapes, options)
    assert nf4.caveat({(64, 64)}, options) is None
    # A block of 32 would do for 32 inputs: it is the 16 that stand in its way.
    assert "no block divides 16 inputs" in nf4.caveat({(16, 32), (32, 16)}, options)


@pytest.mark.parametrize(
    ("shape", "wanted", "said"),
    [
        ((64, 64), 48, "64 inputs cannot be written as nf4 with group size 48. Pass .* 64 or 32."),
        ((64, 64), 128, "64 inputs cannot be written as nf4 with group size 128"),
        ((5, 6), None, "5 outputs and 6 inputs cannot be written as nf4 with group sizes"),
        ((64, 33), None, "33 inputs"),
    ],
)
def test_what_no_block_fits_is_refused(shape, wanted, said):
    with pytest.raises(UnsupportedModelError, match=said):
        nf4.group_size([shape], wanted)

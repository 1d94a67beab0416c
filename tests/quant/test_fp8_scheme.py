"""FP8 in blocks: what transformers makes of the bytes, and what a slow reading of them says."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from moeprune.checkpoint.header import nbytes_of
from moeprune.core.layout import TensorInfo
from moeprune.core.quantisation import SchemeOptions
from moeprune.errors import UnsupportedModelError
from moeprune.quant import Raw, plain_weight, tensor_of
from moeprune.quant.schemes import fp8

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def weight(shape, dtype="BF16", seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02
    made[:8, :8] = 0
    made[-1, ::3] *= 40
    return made.to(TYPES[dtype])


def read(parts, shape, options):
    stated = fp8.parts(shape, options)
    assert [nbytes_of(kind, full) for _, kind, full in stated] == [len(part) for part in parts]
    return {
        name: Raw(TensorInfo(kind, full, len(part)), bytes(part))
        for (name, kind, full), part in zip(stated, parts, strict=True)
    }


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize(
    ("shape", "size"), [((256, 128), 128), ((64, 192), 64), ((8, 24), 8), ((40, 128), 64)]
)
def test_both_other_readers_see_what_decode_says(shape, size, dtype):
    options = SchemeOptions(group_size=size, dtype=dtype)
    values = weight(shape, dtype)
    parts = fp8.encode(values, options)
    decoded = fp8.decode(parts, shape, options)
    raw = read(parts, shape, options)
    plain = plain_weight(raw, {"weight_block_size": [size, size]})
    np.testing.assert_array_equal(decoded.numpy(), plain.astype(np.float32))
    codes = torch.frombuffer(bytearray(parts[0]), dtype=torch.float8_e4m3fn).reshape(shape)
    scales = tensor_of(parts[1], "F32", raw["weight_scale_inv"].info.shape)
    loaded = Fp8Dequantize(None)._dequantize_one(codes, scales, TYPES[dtype])
    assert torch.equal(loaded, decoded.to(TYPES[dtype]))


def test_transformers_quantises_to_the_same_numbers():
    config = SimpleNamespace(weight_block_size=[64, 64], scale_fmt=None)
    values = weight((128, 256), "F32")
    theirs = Fp8Quantize(SimpleNamespace(quantization_config=config))._quantize_one(
        "x.weight", values
    )
    options = SchemeOptions(group_size=64, dtype="F32")
    parts = fp8.encode(values, options)
    scales = tensor_of(parts[1], "F32", (2, 4))
    # It divides 448 by the largest value and takes the reciprocal of that: an ulp of difference,
    # which changes the code of a number at the middle of two.
    torch.testing.assert_close(scales, theirs["x.weight_scale_inv"], rtol=3e-7, atol=0)
    codes = torch.frombuffer(bytearray(parts[0]), dtype=torch.uint8).reshape(128, 256)
    same = codes == theirs["x.weight"].view(torch.uint8)
    assert same.float().mean() > 0.999


def by_hand(values, block):
    """The nearest of all 127 magnitudes, for one number after another; of two, the even code."""
    table = [0.0] * 127
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        table[code] = (
            mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        )
    rows, columns = min(block, values.shape[0]), min(block, values.shape[1])
    codes = np.zeros(values.shape, np.uint8)
    scales = []
    for top in range(0, values.shape[0], rows):
        for left in range(0, values.shape[1], columns):
            part = values[top : top + rows, left : left + columns].float().numpy()
            peak = np.abs(part).max()
            scale = peak / np.float32(448) if peak else np.float32(1)
            scales.append(scale)
            for place in np.ndindex(part.shape):
                number = float(part[place] / scale)
                distance = [abs(abs(number) - one) for one in table]
                near = min(range(127), key=lambda code: (distance[code], code & 1))
                codes[top + place[0], left + place[1]] = near | (
                    128 if math.copysign(1, number) < 0 else 0
                )
    return codes, scales


@pytest.mark.parametrize("dtype", list(TYPES))
def test_a_slow_encoder_in_plain_python_agrees(dtype):
    values = weight((24, 32), dtype, seed=2)
    parts = fp8.encode(values, SchemeOptions(group_size=8, dtype=dtype))
    codes, scales = by_hand(values, 8)
    assert bytes(parts[0]) == codes.tobytes()
    assert tensor_of(parts[1], "F32", (len(scales),)).tolist() == [float(s) for s in scales]


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("size", [1e-40, 1e-7, 1e-3, 1.0, 6e4, 1e30])
def test_every_number_is_within_a_step_at_any_size(dtype, size):
    values = weight((32, 32), dtype="F32")
    values = (values / values.abs().max() * size).to(TYPES[dtype])
    if not bool(torch.isfinite(values).all()):
        values = values.clamp(-6e4, 6e4)
    options = SchemeOptions(group_size=16, dtype=dtype)
    parts = fp8.encode(values, options)
    decoded = fp8.decode(parts, (32, 32), options)
    scales = tensor_of(parts[1], "F32", (2, 2)).repeat_interleave(16, 0).repeat_interleave(16, 1)
    near = (decoded - values.float()).abs()
    # Three bits of mantissa; the smallest numbers are 2^-9 of the scale apart.
    assert bool((near <= torch.maximum(values.float().abs() / 16, scales / 1024) * 1.01).all())


def test_numbers_that_are_not_finite_are_refused():
    for bad in (math.nan, math.inf, -math.inf):
        values = weight((32, 32))
        values[20, 10] = bad
        with pytest.raises(UnsupportedModelError, match="NaN or infinity"):
            fp8.encode(values, SchemeOptions(group_size=16))


@pytest.mark.parametrize(
    ("shapes", "wanted", "expected"),
    [
        ([(768, 2048), (2048, 768)], None, 128),
        ([(192, 256)], None, 64),
        ([(64, 48), (48, 64)], None, 16),
        ([(256, 100), (100, 256)], None, 128),
        ([(64, 48)], 128, 128),
    ],
)
def test_the_block_divides_every_side_or_is_longer(shapes, wanted, expected):
    assert fp8.group_size(shapes, wanted) == expected


@pytest.mark.parametrize(
    ("shapes", "wanted"),
    [([(256, 130)], None), ([(256, 192)], 128), ({(100, 72), (20, 16)}, 64), ({(130, 128)}, None)],
)
def test_what_no_block_fits_is_refused(shapes, wanted):
    with pytest.raises(UnsupportedModelError, match="inputs cannot be written as fp8"):
        fp8.group_size(shapes, wanted)


def test_shapes_that_fit_alone_and_not_together_are_refused():
    shapes = {(192, 64), (100, 128)}
    with pytest.raises(UnsupportedModelError, match=r"^a weight of 192 .*Pass --group-size 256\.$"):
        fp8.group_size(shapes, None)

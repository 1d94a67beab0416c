"""Integers in groups: the bytes of compressed-tensors, and what a slow reading of them says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

from moeprune.checkpoint.header import nbytes_of
from moeprune.core.quantisation import SchemeOptions
from moeprune.errors import UnsupportedModelError
from moeprune.quant import tensor_of
from moeprune.quant.schemes import int4, int8

SCHEMES = [int4, int8]
TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def weight(shape=(48, 256), dtype="BF16", seed=0, scale=0.02):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    made[0] = 0
    made[1, ::3] *= 40
    made[2, :8] = made[2, :8].abs().amax()
    return made.to(TYPES[dtype])


def theirs(scheme, values, scale, group):
    args = QuantizationArgs(
        num_bits=scheme.BITS, type="int", symmetric=True, strategy="group", group_size=group
    )
    stated = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    if scale is None:
        grouped = values.unflatten(1, (-1, group))
        scale, _ = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    parts = {"weight": values.float(), "weight_scale": scale.float(), "weight_zero_point": None}
    packed = compressor.compress(parts, stated)
    whole = compressor.decompress({**packed, "weight_scale": scale}, stated)["weight"]
    return [packed["weight_packed"], scale, packed["weight_shape"]], whole


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("group", [None, 32, 256])
def test_the_bytes_are_those_of_compressed_tensors(scheme, dtype, group):
    values = weight(dtype=dtype)
    size = scheme.group_size([(48, 256)], group)
    options = SchemeOptions(group_size=size, dtype=dtype)
    ours = scheme.encode(values, options)
    expected, whole = theirs(scheme, values, None, size)
    assert [bytes(part) for part in ours] == [
        bytes(part.contiguous().view(torch.uint8).numpy()) for part in expected
    ]
    assert torch.equal(scheme.decode(ours, (48, 256), options).to(TYPES[dtype]), whole)


def by_hand(values, bits, group, scale_type):
    """One number after another, in plain Python floats; bytes and decoded numbers."""
    half = 2 ** (bits - 1)
    packed, scales, decoded = bytearray(), [], []
    for row in values.tolist():
        codes = []
        for start in range(0, len(row), group):
            few = row[start : start + group]
            peak = np.float32(max(map(abs, few)))
            kind = TYPES[scale_type]
            scale = torch.tensor(float(peak / np.float32((2 * half - 1) / 2))).to(kind).item()
            scale = scale or torch.finfo(kind).eps
            scales.append(scale)
            for number in few:
                code = round(float(np.float32(number) / np.float32(scale)))
                code = max(-half, min(half - 1, code))
                decoded.append(code * scale)
                codes.append(code + half)
        if bits == 4:
            codes = [low + 16 * high for low, high in zip(codes[::2], codes[1::2], strict=True)]
        packed += bytes(codes)
    return bytes(packed), scales, np.array(decoded).reshape(values.shape)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("shape", "group"), [((3, 32), 8), ((5, 40), 40), ((7, 96), 32)])
@pytest.mark.parametrize("dtype", list(TYPES))
def test_a_slow_encoder_in_plain_python_agrees(scheme, shape, group, dtype):
    values = weight(shape, dtype)
    options = SchemeOptions(group_size=group, dtype=dtype)
    parts = scheme.encode(values, options)
    packed, scales, decoded = by_hand(values, scheme.BITS, group, dtype)
    assert bytes(parts[0]) == packed
    assert tensor_of(parts[1], dtype, (len(scales),)).tolist() == scales
    np.testing.assert_allclose(scheme.decode(parts, shape, options), decoded, rtol=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_parts_say_what_encode_gives(scheme):
    for dtype in TYPES:
        options = SchemeOptions(group_size=32, dtype=dtype)
        stated = scheme.parts((48, 256), options)
        made = scheme.encode(weight(dtype=dtype), options)
        assert [nbytes_of(kind, shape) for _, kind, shape in stated] == [len(p) for p in made]
        assert [name for name, _, _ in stated] == [
            "weight_packed",
            "weight_scale",
            "weight_shape",
        ]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("size", [1e-7, 3e-6, 2e-5, 1e-3, 1.0, 300.0, 60000.0])
def test_every_number_is_within_a_step_at_any_size(scheme, dtype, size):
    values = weight((8, 64), dtype, scale=1.0)
    values = (values / values.abs().max() * size).to(TYPES[dtype])
    options = SchemeOptions(group_size=32, dtype=dtype)
    parts = scheme.encode(values, options)
    decoded = scheme.decode(parts, (8, 64), options)
    steps = tensor_of(parts[1], dtype, (8, 2)).float().repeat_interleave(32, 1)
    # Half a step; where the scale was rounded down, the largest number is cut off at the end.
    assert bool(((decoded - values.float()).abs() <= 0.8 * steps).all())
    assert bool((decoded[values == 0] == 0).all())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(scheme, bad):
    values = weight()
    values[40, 100] = bad
    with pytest.raises(UnsupportedModelError, match="NaN or infinity"):
        scheme.encode(values, SchemeOptions(group_size=32))


def test_numbers_at_the_end_of_the_type_are_refused_or_finite():
    ends = torch.full((2, 32), -65504.0).half()
    with pytest.raises(UnsupportedModelError, match="too large for F16"):
        int4.encode(ends, SchemeOptions(group_size=32, dtype="F16"))


@pytest.mark.parametrize(
    ("scheme", "inputs", "wanted", "expected"),
    [
        (int8, (256, 384), None, 128),
        (int8, (256, 192), None, 64),
        (int8, (256, 96), None, 32),
        (int4, (256, 768), None, 32),
        (int4, (256, 768), 128, 128),
        (int4, (40, 48), None, 8),
        (int8, (768, 768), 768, 768),
    ],
)
def test_the_group_size_divides_all_inputs(scheme, inputs, wanted, expected):
    assert scheme.group_size([(10, size) for size in inputs], wanted) == expected


@pytest.mark.parametrize(
    ("scheme", "inputs", "wanted", "said"),
    [
        (int8, (256, 100), 64, "256|100 inputs cannot be written as int8 with group size 64"),
        (int8, (256, 100), None, "100 inputs cannot be written as int8 with group sizes"),
        (
            int4,
            (12,),
            4,
            "12 inputs cannot be written as int4 with group size 4. Pass another scheme",
        ),
        (int8, (128, 48), 48, "128 inputs .* group size 48. Pass --group-size 16 or 8."),
        (int4, (24,), 3, "24 inputs cannot be written as int4 with group size 3"),  # half a byte
        (int4, (16,), 1, "16 inputs cannot be written as int4 with group size 1"),
    ],
)
def test_what_no_group_fits_is_refused(scheme, inputs, wanted, said):
    with pytest.raises(UnsupportedModelError, match=said):
        scheme.group_size([(10, size) for size in inputs], wanted)

"""What holds of every scheme: shapes, orders of memory, threads, extremes; errors told rightly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.core.quantisation import SCHEMES, SchemeOptions
from moeprune.errors import UnsupportedModelError
from moeprune.quant import encoded, one_thread, scheme

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
CASES = [*((name, False) for name in SCHEMES), ("nf4", True)]


def normal(shape, dtype="BF16", seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02
    return made.to(TYPES[dtype])


def options(name, shape, *, double=False, dtype="BF16"):
    return SchemeOptions(
        group_size=scheme(name).group_size([shape], None), double_quant=double, dtype=dtype
    )


def stored(name, weight, told):
    return [bytes(part) for part in scheme(name).encode(weight, told)]


@pytest.mark.parametrize(("name", "double"), CASES)
@pytest.mark.parametrize("shape", [(1, 64), (64, 8), (136, 96), (704, 768)])
def test_runs_are_what_decode_gives_and_errors_what_a_second_reading_says(name, double, shape):
    weight = normal(shape)
    told = options(name, shape, double=double)
    parts, error = encoded(name, weight, told)
    assert [bytes(part) for part in parts] == stored(name, weight, told)
    runs = [run.clone().reshape(-1) for run in scheme(name).numbers(parts, shape, told)]
    read = scheme(name).decode(parts, shape, told)
    assert torch.equal(torch.cat(runs).view(shape), read)
    plain = weight.double().numpy()
    lost = float(np.square(read.double().numpy() - plain).sum())
    assert error.error_sq == pytest.approx(lost, rel=1e-5)
    assert error.norm_sq == pytest.approx(float(np.square(plain).sum()), rel=1e-6)
    assert error.count == weight.numel()


@pytest.mark.parametrize(("name", "double"), CASES)
def test_the_order_in_memory_does_not_matter(name, double):
    weight = normal((128, 192))
    told = options(name, (128, 192), double=double)
    turned = weight.t().contiguous().t()
    strided = torch.stack([weight, weight], dim=-1)[..., 0]
    assert not turned.is_contiguous() and not strided.is_contiguous()
    for other in (turned, strided):
        assert stored(name, other, told) == stored(name, weight, told)
        assert encoded(name, other, told)[1] == encoded(name, weight, told)[1]


@pytest.mark.parametrize(("name", "double"), CASES)
def test_threads_do_not_matter(name, double):
    shape = (512, 768)
    told = options(name, shape, double=double)
    weights = [normal(shape, seed=seed) for seed in range(6)]
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
        expected = [stored(name, weight, told) for weight in weights]
    assert torch.get_num_threads() == before
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda weight: stored(name, weight, told), weights)) == expected
    torch.set_num_threads(4)
    try:
        assert [stored(name, weight, told) for weight in weights] == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "double"), CASES)
def test_a_weight_is_not_changed_by_encoding_it(name, double):
    for dtype in TYPES:
        weight = normal((64, 64), dtype)
        before = weight.clone()
        encoded(name, weight, options(name, (64, 64), double=double, dtype=dtype))
        assert torch.equal(weight, before)


@pytest.mark.parametrize(("name", "double"), CASES)
def test_zeros_stay_zeros_and_have_no_error(name, double):
    weight = torch.zeros(64, 128, dtype=torch.bfloat16)
    told = options(name, (64, 128), double=double)
    parts, error = encoded(name, weight, told)
    assert not scheme(name).decode(parts, (64, 128), told).any()
    assert error.relative == 0.0


@pytest.mark.parametrize("size", [1e-38, 1e-25, 1e-16, 1.0, 1e16, 1e25, 1e37])
def test_errors_are_told_of_numbers_of_any_size(size):
    weight = normal((64, 264), "F32") * 50 * size
    told = options("fp8", (64, 264), dtype="F32")
    parts, error = encoded("fp8", weight, told)
    plain, read = weight.double(), scheme("fp8").decode(parts, (64, 264), told).double()
    assert error.norm_sq == pytest.approx(float(plain.square().sum()), rel=1e-6)
    assert error.error_sq == pytest.approx(float((read - plain).square().sum()), rel=1e-5)
    exact = encoded("fp8", torch.full((64, 64), 448 * 2.0**-120), options("fp8", (64, 64)))[1]
    assert exact.error_sq == 0.0 < exact.norm_sq


@pytest.mark.parametrize(("name", "double"), CASES)
def test_doubles_are_rounded_once(name, double):
    weight = normal((64, 128), "F32").double() * (1 + 2**-40)
    told = options(name, (64, 128), double=double, dtype="F64")
    single = SchemeOptions(group_size=told.group_size, double_quant=double, dtype="F32")
    assert stored(name, weight, told) == stored(name, weight.float(), single)
    assert scheme(name).parts((64, 128), told) == scheme(name).parts((64, 128), single)
    with pytest.raises(UnsupportedModelError, match="NaN or infinity"):
        encoded(name, weight * 1e300, told)


# The largest relative error of normally distributed numbers that each scheme may have.
LARGEST = {"int8": 0.008, "int4": 0.12, "fp8": 0.03, "nf4": 0.1}


@pytest.mark.parametrize(("name", "double"), CASES)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 12).map(lambda n: 8 * n),
    columns=st.integers(1, 12).map(lambda n: 32 * n),
    size=st.sampled_from([1e-6, 1e-3, 1.0, 1e3]),
    dtype=st.sampled_from(["BF16", "F32"]),
    seed=st.integers(0, 9),
)
def test_normal_weights_of_any_size_keep_their_numbers(
    name, double, rows, columns, size, dtype, seed
):
    weight = (normal((rows, columns), "F32", seed) * size).to(TYPES[dtype])
    told = options(name, (rows, columns), double=double, dtype=dtype)
    error = encoded(name, weight, told)[1]
    assert 0 < error.relative < LARGEST[name] * (1.2 if double else 1.0)


@pytest.mark.parametrize("name", SCHEMES)
def test_one_huge_number_costs_its_own_group_alone(name):
    weight = normal((256, 256), "F32")
    weight[3, 5] = 1e6
    told = options(name, (256, 256), dtype="F32")
    read = scheme(name).decode(scheme(name).encode(weight, told), (256, 256), told)
    lost = (read - weight)[128:]
    assert float(lost.norm() / weight[128:].norm()) < LARGEST[name]

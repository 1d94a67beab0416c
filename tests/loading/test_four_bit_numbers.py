"""Four-bit numbers against bitsandbytes, and against their definition."""

import functools

import pytest
import torch
from bitsandbytes import functional
from four_bit import decoded

from moeprune.loading import four_bit
from moeprune.loading.four_bit import four_bit_numbers, nested_absmax

SHAPES = [(8, 64), (3, 128), (16, 32), (64, 96), (24, 32), (7, 40), (5, 13), (1, 1), (33, 100)]


@pytest.fixture(params=["torch", "bitsandbytes"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    used = request.param == "bitsandbytes"
    monkeypatch.setattr(four_bit, "_kernels", functools.cache(lambda: used))
    return str(request.param)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers_are_the_definition(
    shape: tuple[int, int], dtype: torch.dtype, kind: str, kernels: str
) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type=kind)
    found = four_bit_numbers(
        packed.view(-1), state.absmax, state.code, kind=kind, block=64, shape=shape, dtype=dtype
    )
    assert found.dtype == dtype and torch.equal(found, decoded(packed, state))
    if shape[1] % 64 == 0:
        assert torch.equal(found, functional.dequantize_4bit(packed, state))


def test_nested_magnitudes_are_bitsandbytes_own() -> None:
    weight = torch.randn(300, 192, generator=torch.Generator().manual_seed(2)) * 0.02
    _, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    inner = state.state2
    found = nested_absmax(
        state.absmax, inner.absmax, inner.code, state.offset, block=inner.blocksize
    )
    wanted = functional.dequantize_blockwise(state.absmax, inner) + state.offset
    assert len(found) % inner.blocksize and torch.equal(found, wanted)

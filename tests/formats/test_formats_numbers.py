"""The reading of stored bytes that loaders are checked against, and the check itself."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from quantisers import ALL, LOADED, quantised
from stored_weights import raws

from moeprune.core.layout import TensorInfo
from moeprune.errors import CheckpointError
from moeprune.observe.load import load_causal_lm
from moeprune.quant import Raw, plain_tensor, plain_weight, stored_format
from moeprune.quant._numbers import numbers, spread
from moeprune.stages.identify import open_model
from moeprune.stages.numbers import check_numbers, stored_square

READ = [*LOADED, "ct-nvfp4", "ct-int8", "modelopt-fp8"]


@pytest.mark.parametrize("name", READ)
def test_squares_from_bytes(name: str, tmp_path: Path) -> None:
    source, meaning = quantised(tmp_path / "source", ALL[name])
    opened = open_model(source)
    stored = stored_format(opened.index.config)
    assert stored is not None
    for row, layer in enumerate(opened.layout.layer_ids):
        for expert in (0, 7, 11):
            stem = f"model.layers.{layer}.mlp.experts.{expert}."
            due = sum(
                float(weight.double().square().sum())
                for key, weight in meaning.items()
                if key.startswith(stem)
            )
            have = stored_square(opened.index, opened.layout, stored, row=row, expert=expert)
            assert have == pytest.approx(due, rel=1e-5)


@pytest.mark.parametrize("name", sorted(set(ALL) - set(READ)))
def test_what_is_not_read_is_not_guessed(name: str, tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", ALL[name])
    opened = open_model(source)
    stored = stored_format(opened.index.config)
    assert stored is not None
    assert stored_square(opened.index, opened.layout, stored, row=0, expert=0) is None


@pytest.mark.parametrize("name", LOADED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loader_that_drops_scales_is_found(name: str, dtype: str, tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", LOADED[name])
    opened = open_model(source)
    live = load_causal_lm(source, dtype=dtype)
    check_numbers(opened.index, opened.layout, live)
    with torch.no_grad():
        for key, weight in live.named_parameters():
            if "layers.2.mlp.experts.gate_up_proj" in key:
                weight.mul_(1.5)
    with pytest.raises(CheckpointError, match=r"layer 2, expert 1: .* does not read this format"):
        check_numbers(opened.index, opened.layout, live)


def test_every_byte_of_e4m3_and_every_plain_type() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    wanted = codes.view(torch.float8_e4m3fn).double().numpy()
    mine = numbers(Raw(TensorInfo("F8_E4M3", (16, 16), 256), bytes(range(256)))).ravel()
    np.testing.assert_array_equal(mine, wanted)
    values = torch.tensor([0.0, -1.5, 3.140625, 2.0**-14, 640.0])
    for dtype, name in ((torch.bfloat16, "BF16"), (torch.float16, "F16"), (torch.float32, "F32")):
        data = values.to(dtype).view(torch.uint8).numpy().tobytes()
        mine = numbers(Raw(TensorInfo(name, (5,), len(data)), data))
        np.testing.assert_array_equal(mine, values.to(dtype).double().numpy())
    assert math.isnan(numbers(Raw(TensorInfo("F8_E4M3", (1,), 1), b"\x7f"))[0])


def test_scales_of_a_block_that_is_cut_short() -> None:
    """48 rows in blocks of 32: the second scale has 16 rows."""
    grid = np.array([[1.0, 2.0], [3.0, 4.0]])
    full = spread(grid, (48, 40), (32, 32))
    for row in range(48):
        for column in range(40):
            assert full[row, column] == grid[row // 32, column // 32]


# Their references in quantisers.py leave out what a type rounds: float16 scales.
@pytest.mark.parametrize("name", sorted(set(ALL) - {"ct-pack-asymmetric"}))
def test_plain_tensors_of_all_formats(name: str) -> None:
    """What ``--requantize`` reads: the fast reader against the reference, and the slow one."""
    form = ALL[name]
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(3)) * 0.02
    stored, plain = form.quantise(weight)
    parts = raws(stored)
    made = plain_tensor(parts, form.settings)
    assert made is not None and made.dtype == torch.float32 and made.shape == weight.shape
    size = float(plain.abs().max())
    coarse = {"gptq": 2e-3, "awq": 2e-3}
    torch.testing.assert_close(made, plain.float(), rtol=0, atol=coarse.get(name, 1e-6) * size)
    slow = plain_weight(parts, form.settings)
    if slow is not None:
        np.testing.assert_allclose(made.double().numpy(), slow, rtol=1e-6, atol=0)


def test_what_has_no_numbers_is_not_read() -> None:
    weight = torch.randn(64, 128)
    assert plain_tensor(raws(ALL["ct-pack-asymmetric"].quantise(weight)[0]), {}) is None
    stored = raws(ALL["fp8-blocks"].quantise(weight)[0])
    assert plain_tensor({"weight": stored["weight"]}, {}) is None
    assert plain_tensor({"bias": stored["weight"]}, {}) is None

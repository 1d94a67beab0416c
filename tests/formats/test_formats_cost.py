"""What a token costs does not depend on how the experts are stored, but its bytes do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from quantisers import ALL, quantised, weights
from safetensors.torch import save_file
from test_formats_fused import fused_fp8, mxfp4_gpt_oss
from tiny import tiny_checkpoint

from moeprune.core.cost import Activated
from moeprune.stages.costs import token_cost
from moeprune.stages.identify import open_model


def plainly(path: Path, tensors: dict[str, torch.Tensor], like: Path) -> Activated:
    """The cost of the weights that the stored ones mean."""
    path.mkdir()
    config = json.loads((like / "config.json").read_text())
    config.pop("quantization_config")
    (path / "config.json").write_text(json.dumps(config))
    plain = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
    save_file(plain, path / "model.safetensors")
    return token_cost(open_model(path)).native


@pytest.mark.parametrize("name", sorted(ALL))
def test_packed_weights_count_as_what_they_mean(name: str, tmp_path: Path) -> None:
    stored, meaning = quantised(tmp_path / "stored", ALL[name])
    cost = token_cost(open_model(stored)).native
    plain = plainly(tmp_path / "plain", meaning, stored)
    assert (cost.routed, cost.shared, cost.other) == (plain.routed, plain.shared, plain.other)
    # Three of twelve experts are read, of the bytes that lie on the disk.
    experts = [t for n, t in weights(stored).items() if ".experts." in n]
    size = sum(tensor.numel() * tensor.element_size() for tensor in experts)
    assert cost.routed_bytes == pytest.approx(size * 3 / 12, abs=1)
    assert cost.bytes_per_token - cost.routed_bytes == plain.bytes_per_token - plain.routed_bytes
    assert cost.routed_bytes < plain.routed_bytes


def test_blocks_of_gpt_oss_count_as_what_they_mean(tmp_path: Path) -> None:
    stored, _ = mxfp4_gpt_oss(tmp_path / "stored")
    plain = tiny_checkpoint("gpt_oss", tmp_path / "plain", hidden_size=64, intermediate_size=32)
    cost, expected = (token_cost(open_model(path)).native for path in (stored, plain))
    assert (cost.routed, cost.other) == (expected.routed, expected.other)
    assert cost.routed_bytes < expected.routed_bytes / 4


def test_fused_codes_count_as_what_they_mean(tmp_path: Path) -> None:
    stored = fused_fp8(tmp_path / "stored")
    cost = token_cost(open_model(stored)).native
    codes = [t for name, t in weights(stored).items() if t.dtype == torch.float8_e4m3fn]
    assert codes and cost.routed == sum(t.numel() // t.shape[0] for t in codes) * 3

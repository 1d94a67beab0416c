"""Formats that hold all experts of a layer in one tensor, and plain number types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from quantisers import E4M3, FP8, edit_config, fp4_codes, scaled_blocks, weights
from safetensors.torch import save_file
from test_formats_bytes import hand_plan, same
from tiny import tiny_checkpoint

import moeprune
from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.observe.load import load_causal_lm
from moeprune.stages.export import export
from moeprune.stages.verify import verify


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("fused") / "text.txt"
    path.write_text("The mill stood where the stream left the wood.\n\nBread wants flour.\n")
    return str(path)


def rewrite(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        path / "model.safetensors",
        metadata={"format": "pt"},
    )


def mxfp4_gpt_oss(path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """gpt-oss as published: blocks (E, out, in/32, 16) and scales of the transposed weights."""
    tiny_checkpoint("gpt_oss", path, hidden_size=64, intermediate_size=32)
    tensors, meaning = weights(path), {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        weight = tensors.pop(name).transpose(1, 2)
        experts, out, into = weight.shape
        largest, _ = scaled_blocks(weight.reshape(-1, into), 1, 32, 1.0)
        exponent = largest.log2().floor() - 2
        full = exponent.exp2().repeat_interleave(32, 1)
        packed, values = fp4_codes((weight.reshape(-1, into) / full).clamp(-6, 6))
        tensors[f"{name}_blocks"] = packed.reshape(experts, out, into // 32, 16)
        tensors[f"{name}_scales"] = (exponent + 127).to(torch.uint8).reshape(experts, out, -1)
        meaning[name] = (values * full).reshape(experts, out, into).transpose(1, 2)
    rewrite(path, tensors)
    edit_config(
        path,
        quantization_config={
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        },
    )
    return path, meaning


def test_gpt_oss_mxfp4(domain: str, tmp_path: Path) -> None:
    source, meaning = mxfp4_gpt_oss(tmp_path / "source")
    live = load_causal_lm(source, dtype="float32").state_dict()
    for name, wanted in meaning.items():
        torch.testing.assert_close(live[name], wanted, rtol=0, atol=0)
    stats = tmp_path / "stats.safetensors"
    moeprune.calibrate(source, output=stats, domains={"text": domain}, dtype="float32")
    plan = moeprune.plan(stats, output=tmp_path / "plan.json", method="mesa", ratio=0.34)
    out = moeprune.export(source, plan=tmp_path / "plan.json", output=tmp_path / "out")
    report = verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    small = weights(out)
    for name, tensor in weights(source).items():
        if ".experts." in name or ".router." in name:
            ids = list(plan.keep[int(name.split(".")[2])])
            assert same(tensor[ids], small[name]), name
    pruned = load_causal_lm(out, dtype="float32").state_dict()
    for name, wanted in meaning.items():
        ids = list(plan.keep[int(name.split(".")[2])])
        torch.testing.assert_close(pruned[name], wanted[ids], rtol=0, atol=0)


def test_blocks_without_scales_are_refused(tmp_path: Path) -> None:
    source, _ = mxfp4_gpt_oss(tmp_path / "source")
    tensors = weights(source)
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    rewrite(source, tensors)
    with pytest.raises(CheckpointError, match="down_proj_blocks"):
        export(source, plan=hand_plan(source), output=tmp_path / "out")


def test_fbgemm_llama4(domain: str, tmp_path: Path) -> None:
    """One scale a row of the transposed weight; nothing here can run it, so bytes are compared."""
    source = tiny_checkpoint("llama4_text", tmp_path / "source")
    tensors = weights(source)
    names = [name for name in tensors if ".experts." in name]
    assert names
    for name in names:
        axis = 1 if name.endswith("gate_up_proj") else 2
        scale = tensors[name].abs().amax(axis, keepdim=True) / 448.0
        tensors[name] = (tensors[name] / scale).to(E4M3)
        # The layout of transformers: (E, 1, 2I) and (E, H, 1).
        stored = scale if axis == 1 else scale.new_ones(len(scale), tensors[name].shape[2], 1)
        tensors[f"{name}_scale"] = stored * torch.arange(1, len(scale) + 1)[:, None, None]
    rewrite(source, tensors)
    edit_config(
        source,
        quantization_config={
            "quant_method": "fbgemm_fp8",
            "activation_scale_ub": 1200.0,
            "modules_to_not_convert": ["model.layers.0.self_attn", "lm_head"],
        },
    )
    plan = hand_plan(source)
    out = export(source, plan=plan, output=tmp_path / "out")
    report = verify(out, source=source)
    assert report.ok, report.to_text()
    full, small = weights(source), weights(out)
    assert full.keys() == small.keys()
    ids = dict(zip(plan.layer_ids, plan.keep, strict=True))
    for name, tensor in full.items():
        routed = ".experts." in name or ".router." in name
        due = tensor[list(ids[int(name.split(".")[2])])] if routed else tensor
        assert same(due, small[name]), name
    with pytest.raises(UnsupportedModelError, match="FBGEMM"):
        moeprune.calibrate(source, domains={"text": domain})
    del tensors["model.layers.1.feed_forward.experts.gate_up_proj_scale"]
    rewrite(source, tensors)
    with pytest.raises(CheckpointError, match="gate_up_proj_scale"):
        export(source, plan=hand_plan(source), output=tmp_path / "again")


def fused_fp8(path: Path) -> Path:
    """Qwen3-MoE as transformers holds it in memory, in FP8 with scales of blocks of 16 x 16."""
    tiny_checkpoint("qwen3_moe", path)
    tensors = weights(path)
    for layer in (0, 2, 3):
        stem = f"model.layers.{layer}.mlp.experts"
        plain = {
            part: torch.stack([tensors.pop(f"{stem}.{e}.{part}.weight") for e in range(12)])
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        fused = {
            "gate_up_proj": torch.cat([plain["gate_proj"], plain["up_proj"]], dim=1),
            "down_proj": plain["down_proj"],
        }
        for part, weight in fused.items():
            pairs = [scaled_blocks(expert, 16, 16, 448.0) for expert in weight]
            tensors[f"{stem}.{part}"] = torch.stack(
                [(expert / full).to(E4M3) for expert, (_, full) in zip(weight, pairs, strict=True)]
            )
            tensors[f"{stem}.{part}_scale_inv"] = torch.stack([scale for scale, _ in pairs])
    rewrite(path, tensors)
    edit_config(path, quantization_config={**FP8, "weight_block_size": [16, 16]})
    return path


def test_fused_fp8_is_sliced_but_never_run(domain: str, tmp_path: Path) -> None:
    """transformers drops the scales of fused FP8 experts and would run on their codes."""
    source = fused_fp8(tmp_path / "source")
    plan = hand_plan(source)
    out = export(source, plan=plan, output=tmp_path / "out")
    assert verify(out, source=source).ok
    full, small = weights(source), weights(out)
    for layer, ids in zip(plan.layer_ids, plan.keep, strict=True):
        for part in ("gate_up_proj", "gate_up_proj_scale_inv", "down_proj", "down_proj_scale_inv"):
            name = f"model.layers.{layer}.mlp.experts.{part}"
            assert same(full[name][list(ids)], small[name]), name
    with pytest.raises(UnsupportedModelError, match="ignores the scales"):
        moeprune.calibrate(source, domains={"text": domain})
    with pytest.raises(UnsupportedModelError, match="ignores the scales"):
        verify(out, source=source, forward=True)
    # Even where nothing was checked before: the load itself is refused.
    with pytest.raises(CheckpointError, match="scale_inv"):
        load_causal_lm(source, dtype="float32")


def test_blocks_cut_short_are_never_run(domain: str, tmp_path: Path) -> None:
    """48 rows in blocks of 32: transformers would spread two scales over 24 rows each."""
    source = tiny_checkpoint("qwen3_moe", tmp_path / "source", moe_intermediate_size=48)
    tensors = weights(source)
    for name in [name for name in tensors if ".experts." in name]:
        rows, cols = tensors[name].shape
        tensors[name] = tensors[name].to(E4M3)
        tensors[f"{name}_scale_inv"] = torch.rand(-(-rows // 32), -(-cols // 32)) + 0.5
    rewrite(source, tensors)
    edit_config(source, quantization_config={**FP8, "weight_block_size": [32, 32]})
    with pytest.raises(UnsupportedModelError, match="no multiple of its blocks"):
        moeprune.calibrate(source, domains={"text": domain})
    # The refusal is not idle: what transformers makes of it is not what is stored.
    name = "model.layers.0.mlp.experts.0.gate_proj.weight"
    stored = tensors[name].float() * tensors[f"{name}_scale_inv"].repeat_interleave(32, 0)[:48]
    live = load_causal_lm(source, dtype="float32").state_dict()
    assert not torch.allclose(live["model.layers.0.mlp.experts.gate_up_proj"][0][:48], stored)
    out = export(source, plan=hand_plan(source), output=tmp_path / "out")
    assert verify(out, source=source).ok


@pytest.mark.parametrize("settings", [None, {"quant_method": "tomorrow"}, {"bits": 8}])
def test_codes_without_a_known_format_are_never_run(
    settings: dict[str, object] | None, domain: str, tmp_path: Path
) -> None:
    source = fused_fp8(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    if settings is not None:
        config["quantization_config"] = settings
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"no quantization_config|not one that"):
        moeprune.calibrate(source, domains={"text": domain})
    assert verify(export(source, plan=hand_plan(source), output=tmp_path / "out"), source=source).ok


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_plain_types(dtype: torch.dtype, tmp_path: Path) -> None:
    source = tiny_checkpoint("qwen3_moe", tmp_path / "source")
    rewrite(source, {name: tensor.to(dtype) for name, tensor in weights(source).items()})
    edit_config(source, dtype=str(dtype).removeprefix("torch."))
    out = export(source, plan=hand_plan(source), output=tmp_path / "out")
    report = verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    assert {tensor.dtype for tensor in weights(out).values()} == {dtype}

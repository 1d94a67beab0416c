"""A gain in quantised experts: which stored tensor takes it, and what cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from folding import made_up_stats, record_of, same
from quantisers import ALL, FP8, LOADED, edit_config, quantised, weights
from safetensors.torch import save_file
from test_formats_bytes import hand_plan
from test_formats_fused import fused_fp8, mxfp4_gpt_oss

import moeprune
from moeprune.errors import UnsupportedModelError
from moeprune.observe.load import load_causal_lm

# What takes the gain: of a layer that stays unquantised the weight, else this scale.
SCALES = {
    "fp8-blocks": "weight_scale_inv",
    "fp8-rows": "weight_scale_inv",
    "fp8-named-scale": "scale",
    "fp8-static": "weight_scale_inv",
    "ct-float-tensor": "weight_scale",
    "ct-float-channel": "weight_scale",
    "ct-pack-int4": "weight_scale",
    "ct-pack-int8": "weight_scale",
    "ct-pack-partly": "weight_scale",
    "ct-pack-asymmetric": "weight_scale",
    "ct-int8": "weight_scale",
    "ct-nvfp4": "weight_global_scale",
    "gptq": "scales",
    "awq": "scales",
    "modelopt-fp8": "weight_scale",
    "modelopt-nvfp4": "weight_scale_2",
}
REFUSED = {
    "ct-mxfp4": r"weight_scale' is U8, a type too coarse",
    "bitsandbytes-nf4": "quantised itself",
}


def test_every_format_is_here() -> None:
    assert SCALES.keys() | REFUSED.keys() == ALL.keys()


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("planned", [False, True], ids=["whole", "planned"])
def test_the_scale_takes_the_gain(name: str, planned: bool, tmp_path: Path) -> None:
    form = ALL[name]
    source, meaning = quantised(tmp_path / "source", form)
    plan = hand_plan(source) if planned else None
    stats = made_up_stats(source)
    out = moeprune.export(source, output=tmp_path / "out", plan=plan, k1=2, k2=6, fold_gain=stats)
    gains = dict(zip((0, 2, 3), record_of(out)["folded_gain"]["gains"], strict=True))
    old, new = weights(source), weights(out)
    multiplied = 0
    for stored, tensor in new.items():
        found = re.fullmatch(r"model\.layers\.(\d)\.mlp\.experts\.(\d+)\.(\w+)\.(.+)", stored)
        if found is None:
            if "mlp.gate" not in stored:
                assert same(tensor, old[stored])
            continue
        layer, expert, matrix, part = int(found[1]), int(found[2]), found[3], found[4]
        if plan is not None:
            expert = plan.keep[(0, 2, 3).index(layer)][expert]
        before = old[f"model.layers.{layer}.mlp.experts.{expert}.{matrix}.{part}"]
        takes = "weight" if layer == form.plain_layer else SCALES[name]
        if matrix != "down_proj" or part != takes:
            assert same(tensor, before), stored
            continue
        gain = torch.tensor(gains[layer], dtype=torch.float32)
        gain = 1 / gain if part == "weight_global_scale" else gain
        wanted = (before.double() * gain.double()).to(before.dtype)
        torch.testing.assert_close(
            tensor, wanted, rtol=1e-3 if tensor.itemsize == 2 else 2e-7, atol=0
        )
        multiplied += 1
    assert multiplied == 3 * (8 if planned else 12)
    report = moeprune.verify(out, source=source)
    assert report.ok, report.to_text()
    if name in LOADED and not planned:
        # What anyone loads means the source's numbers times the gain.
        live = load_causal_lm(out, dtype="float32").state_dict()
        for layer, gain in gains.items():
            for expert in range(12):
                have = live[f"model.layers.{layer}.mlp.experts.down_proj"][expert]
                stem = f"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"
                torch.testing.assert_close(have, meaning[stem] * gain, rtol=1e-5, atol=1e-7)
        report = moeprune.verify(out, source=source, forward=True)
        assert report.ok, report.to_text()


@pytest.mark.parametrize("name", REFUSED)
def test_scales_that_cannot(name: str, tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", ALL[name])
    out = tmp_path / "out"
    with pytest.raises(UnsupportedModelError, match=REFUSED[name]) as caught:
        moeprune.export(source, output=out, k1=2, k2=6, fold_gain=made_up_stats(source))
    assert "\n" not in str(caught.value) and "down_proj" in str(caught.value) and not out.exists()
    # k₂ = k₁ needs no factor.
    moeprune.export(source, output=out, k1=2, k2=2, fold_gain=made_up_stats(source))
    assert moeprune.verify(out, source=source).ok


def test_gpt_oss_mxfp4_is_refused(tmp_path: Path) -> None:
    source, _ = mxfp4_gpt_oss(tmp_path / "source")
    with pytest.raises(UnsupportedModelError, match="down_proj_scales' is U8"):
        moeprune.export(
            source, output=tmp_path / "out", k1=2, k2=6, fold_gain=made_up_stats(source)
        )


def test_powers_of_two_by_the_settings_are_refused(tmp_path: Path) -> None:
    form = ALL["fp8-blocks"]
    source, _ = quantised(tmp_path / "source", form)
    edit_config(source, quantization_config={**form.settings, "scale_fmt": "ue8m0"})
    with pytest.raises(UnsupportedModelError, match="scale_fmt ue8m0"):
        moeprune.export(
            source, output=tmp_path / "out", k1=2, k2=6, fold_gain=made_up_stats(source)
        )


def test_fused_fp8_and_its_scales(tmp_path: Path) -> None:
    source = fused_fp8(tmp_path / "source")
    out = moeprune.export(
        source,
        plan=hand_plan(source),
        output=tmp_path / "out",
        k1=2,
        k2=6,
        fold_gain=made_up_stats(source),
    )
    plan, old, new = hand_plan(source), weights(source), weights(out)
    gains = record_of(out)["folded_gain"]["gains"]
    for layer, ids, gain in zip(plan.layer_ids, plan.keep, gains, strict=True):
        stem = f"model.layers.{layer}.mlp.experts"
        for part in ("gate_up_proj", "gate_up_proj_scale_inv", "down_proj"):
            assert same(new[f"{stem}.{part}"], old[f"{stem}.{part}"][list(ids)])
        wanted = old[f"{stem}.down_proj_scale_inv"][list(ids)] * torch.tensor(gain)
        assert same(new[f"{stem}.down_proj_scale_inv"], wanted)
    assert moeprune.verify(out, source=source).ok


def test_codes_without_a_scale_of_their_own_are_refused(tmp_path: Path) -> None:
    """One scale for all matrices of an expert would also change what goes into the activation."""
    source = fused_fp8(tmp_path / "source")
    tensors = weights(source)
    for name in [name for name in tensors if name.endswith("scale_inv")]:
        scale = tensors.pop(name)
        if "down_proj" in name:
            tensors[name.replace("down_proj_scale_inv", "scale_inv")] = scale.mean().reshape(1)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    edit_config(source, quantization_config={**FP8, "quant_method": "modelopt"})
    with pytest.raises(UnsupportedModelError, match="has no scale of its own"):
        moeprune.export(
            source, output=tmp_path / "out", k1=2, k2=6, fold_gain=made_up_stats(source)
        )


def test_one_scale_for_all_experts_of_a_layer(tmp_path: Path) -> None:
    """It belongs to the layer's last maps alone, so it takes the layer's gain."""
    source = fused_fp8(tmp_path / "source")
    tensors = weights(source)
    for name in [name for name in tensors if name.endswith("scale_inv")]:
        tensors[name] = tensors[name].mean().reshape(1)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    out = moeprune.export(
        source, output=tmp_path / "out", k1=2, k2=6, fold_gain=made_up_stats(source)
    )
    gains = record_of(out)["folded_gain"]["gains"]
    for layer, gain in zip((0, 2, 3), gains, strict=True):
        name = f"model.layers.{layer}.mlp.experts.down_proj_scale_inv"
        assert same(weights(out)[name], tensors[name] * torch.tensor(gain))
    assert moeprune.verify(out, source=source).ok

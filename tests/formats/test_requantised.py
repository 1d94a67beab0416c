"""export --requantize: every stored format becomes another, from the numbers that it means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dequantised import plain_weights
from plans import plan_keeping
from quantisers import ALL, quantised, weights
from quantisers import fp8_blocks as blocks
from safetensors.torch import load_file, save_file
from stored_weights import raw
from test_formats_fused import mxfp4_gpt_oss

import moeprune
from moeprune.core.quantisation import QuantOptions
from moeprune.errors import MoePruneError, UnsupportedModelError, UsageError
from moeprune.observe.load import load_causal_lm
from moeprune.quant import SETTINGS_FILES, Raw, plain_tensor
from moeprune.stages.verify import verify

READ = sorted(set(ALL) - {"ct-pack-asymmetric"})
KEEP = [range(0, 12, 2), range(1, 12, 2), range(6)]


def plain_copy(source: Path, folder: Path) -> Path:
    """The checkpoint that the source stands for, in its own plain type."""
    config = json.loads((source / "config.json").read_text())
    settings = config.pop("quantization_config")
    tensors: dict[str, torch.Tensor] = {}
    parts: dict[str, dict[str, Raw]] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        stem, found, rest = name.rpartition("_proj.")
        if ".experts." not in name or (
            rest == "weight"
            and tensor.is_floating_point()
            and (tensor.dtype.itemsize > 1)
            and f"{stem}{found}weight_scale" not in tensors
        ):
            tensors[name] = tensor
        else:
            parts.setdefault(stem + found.rstrip("."), {})[rest] = raw(tensor)
    for module, found in parts.items():
        made = plain_tensor(found, settings)
        assert made is not None, module
        tensors[f"{module}.weight"] = made
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("name", READ)
def test_as_from_the_plain_checkpoint(name: str, tmp_path: Path) -> None:
    """The same bytes as from a checkpoint of the same numbers, and verified on its own."""
    source, _ = quantised(tmp_path / "source", ALL[name])
    plain = plain_copy(source, tmp_path / "plain")
    scheme = "fp8" if name.startswith("ct-pack") else "int8"
    options = QuantOptions(scheme=scheme, requantize=True, group_size=32)
    out = moeprune.export(
        source, output=tmp_path / "out", plan=plan_keeping(source, KEEP), quantize=options
    )
    due = moeprune.export(
        plain,
        output=tmp_path / "due",
        plan=plan_keeping(plain, KEEP),
        quantize=replace(options, requantize=False),
    )
    have, wanted = weights(out), weights(due)
    assert set(have) == set(wanted)
    for key, tensor in wanted.items():
        assert torch.equal(have[key].view(torch.uint8), tensor.view(torch.uint8)), key
    configs = [json.loads((folder / "config.json").read_text()) for folder in (out, due)]
    assert configs[0] == configs[1]
    assert not any((out / file).exists() for file in SETTINGS_FILES)
    record = json.loads((out / "moeprune.json").read_text())
    assert any("second time" in warning for warning in record["warnings"])
    assert "second time" in (out / "README.md").read_text()
    stored = sum(tensor.nbytes for tensor in have.values())
    parts = record["quantisation"]["parts"].values()
    assert sum(part["bytes_after"] for part in parts) == record["size"]["bytes_after"] == stored
    report = verify(out, source=source)
    assert report.ok, report.to_text()


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", ALL["ct-pack-asymmetric"])
    options = QuantOptions(scheme="int8", requantize=True)
    with pytest.raises(UnsupportedModelError, match=r"cannot read the numbers .*_proj") as caught:
        moeprune.export(source, output=tmp_path / "out", quantize=options)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()
    with pytest.raises(UnsupportedModelError, match="pass --requantize"):
        moeprune.export(source, output=tmp_path / "out", quantize="int8")


def fp8_throughout(path: Path) -> Path:
    """Attention too is stored in FP8, as DeepSeek and Qwen publish it; two shards."""
    quantised(path, ALL["fp8-blocks"])
    tensors = weights(path)
    for name in [name for name in tensors if "_proj.weight" in name and ".self_attn." in name]:
        tensors |= {
            name.removesuffix("weight") + suffix: made
            for suffix, made in blocks(tensors.pop(name))[0].items()
        }
    scales = {name: tensor for name, tensor in tensors.items() if name.endswith("scale_inv")}
    rest = {name: tensor for name, tensor in tensors.items() if name not in scales}
    (path / "model.safetensors").unlink()
    where = {}
    for number, part in enumerate((rest, scales), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file(part, path / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    config = json.loads((path / "config.json").read_text())
    skips = config["quantization_config"]["modules_to_not_convert"]
    skips.remove("self_attn")
    (path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return path


def everything(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= load_file(file)
    return found


@pytest.mark.parametrize("also", [(), ("attention",)], ids=["experts", "also"])
def test_other_quantised_weights_become_plain(also: tuple[str, ...], tmp_path: Path) -> None:
    """Scales lie in another shard than their weights; the model's type is bfloat16."""
    source = fp8_throughout(tmp_path / "source")
    options = QuantOptions(scheme="int8", requantize=True, group_size=32, also=also)
    out = moeprune.export(source, output=tmp_path / "out", quantize=options)
    report = verify(out, source=source)
    assert report.ok, report.to_text()
    stored, made = everything(source), everything(out)
    assert not any(tensor.dtype == torch.float8_e4m3fn for tensor in made.values())
    assert not any(name.endswith("scale_inv") for name in made)
    name = "model.layers.2.self_attn.q_proj."
    assert (f"{name}weight_packed" in made) == bool(also)
    if not also:
        weight, scale = stored[name + "weight"].float(), stored[name + "weight_scale_inv"]
        full = scale.repeat_interleave(16, 0).repeat_interleave(32, 1)
        assert torch.equal(made[name + "weight"], (weight * full).bfloat16())
    record = json.loads((out / "moeprune.json").read_text())
    parts = record["quantisation"]["parts"]
    before = sum(t.nbytes for n, t in stored.items() if ".self_attn." in n)
    after = sum(t.nbytes for n, t in made.items() if ".self_attn." in n)
    assert (parts["attention"]["bytes_before"], parts["attention"]["bytes_after"]) == (
        before,
        after,
    )
    assert record["size"]["bytes_after"] == sum(tensor.nbytes for tensor in made.values())
    live = load_causal_lm(out, dtype="bfloat16")
    assert live.config.dtype == torch.bfloat16

    def nudge(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.v_proj.weight"][3, 3] *= 1.1

    if not also:
        for file in sorted(out.glob("*.safetensors")):
            tensors = load_file(file)
            if "model.layers.0.self_attn.v_proj.weight" in tensors:
                nudge(tensors)
                save_file(tensors, file, metadata={"format": "pt"})
        report = verify(out, source=source)
        assert "v_proj" in report.problems[0] and "not the plain weight" in report.problems[0]


def test_settings_in_other_places_go(tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", ALL["fp8-blocks"])
    config = json.loads((source / "config.json").read_text())
    settings = config.pop("quantization_config")
    edited = {**config, "compression_config": settings}
    (source / "config.json").write_text(json.dumps(edited))
    options = QuantOptions(scheme="int4", requantize=True)
    out = moeprune.export(source, output=tmp_path / "out", quantize=options)
    made = json.loads((out / "config.json").read_text())
    assert made["compression_config"] is None
    assert made["quantization_config"]["quant_method"] == "compressed-tensors"
    report = verify(out, source=source)
    assert report.ok, report.to_text()
    made["compression_config"] = settings
    (out / "config.json").write_text(json.dumps(made))


def test_a_folded_gain_is_refused(tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", ALL["fp8-blocks"])
    (tmp_path / "text.txt").write_text("Bread wants flour, and flour wants a mill.\n")
    stats = moeprune.calibrate(source, domains={"text": str(tmp_path / "text.txt")})
    options = QuantOptions(scheme="int8", requantize=True)
    with pytest.raises(UsageError, match="--fold-gain first"):
        moeprune.export(
            source, output=tmp_path / "out", quantize=options, k1=1, k2=4, fold_gain=stats
        )


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8", "nf4"])
def test_gpt_oss_mxfp4(scheme: str, tmp_path: Path) -> None:
    """Blocks of all experts of a layer, whose outputs take turns."""
    source, meaning = mxfp4_gpt_oss(tmp_path / "source")
    keep = [(0, 2, 3, 5), (1, 2, 6, 7)]
    options = QuantOptions(scheme=scheme, requantize=True, group_size=32)
    plan = plan_keeping(source, keep)
    out = moeprune.export(source, output=tmp_path / "out", plan=plan, quantize=options)
    report = verify(out, source=source)
    assert report.ok, report.to_text()
    made = plain_weights(out)
    for row, ids in enumerate(keep):
        for number, expert in enumerate(ids):
            stem = f"model.layers.{row}.mlp.experts."
            both = meaning[f"{stem}gate_up_proj"][expert].T
            due = {"gate_proj": both[0::2], "up_proj": both[1::2]}
            due["down_proj"] = meaning[f"{stem}down_proj"][expert].T
            for name, weight in due.items():
                have = torch.from_numpy(made[f"{stem}{number}.{name}.weight"])
                off = (have - weight.double()).norm() / weight.double().norm()
                assert off < {"int8": 0.02, "fp8": 0.06}.get(scheme, 0.2), name


@pytest.mark.parametrize("name", ["fp8-blocks", "ct-pack-int4", "bitsandbytes-nf4", "gptq"])
def test_a_damaged_source_is_one_line(name: str, tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", ALL[name])
    tensors = weights(source)
    stem = "model.layers.2.mlp.experts.7.up_proj."
    for key in [key for key in tensors if key.startswith(stem)]:
        last = key.removeprefix(stem)
        if "scale" in last or last == "weight.absmax":
            tensors[key] = tensors[key].flatten()[:5].clone().reshape(1, -1)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    options = QuantOptions(scheme="int8", requantize=True, group_size=32)
    with pytest.raises(MoePruneError) as caught:
        moeprune.export(source, output=tmp_path / "out", quantize=options)
    assert "\n" not in str(caught.value) and "up_proj" in str(caught.value)
    assert not (tmp_path / "out").exists()

"""Quantised models that transformers builds in another way: Llama 4, and a vision-language one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from quantisers import FP8, ct, edit_config, fp8_blocks, int4_group, weights
from safetensors.torch import save_file
from test_formats_bytes import hand_plan
from tiny import add_tokenizer, fill, tiny_checkpoint, tiny_config

import moeprune
from moeprune.stages.export import export
from moeprune.stages.verify import verify


def whole_job(source: Path, folder: Path) -> None:
    (folder / "text.txt").write_text("The mill stood where the stream left the wood.\n")
    moeprune.calibrate(source, domains={"text": str(folder / "text.txt")}, dtype="float32")
    out = export(source, plan=hand_plan(source), output=folder / "out")
    report = verify(out, source=source, forward=True, tolerance=5e-5)
    assert report.ok, report.to_text()


def test_llama4_int4_expert_by_expert(tmp_path: Path) -> None:
    """compressed-tensors stores Llama 4's fused, transposed experts one by one."""
    source = tiny_checkpoint("llama4_text", tmp_path / "m", hidden_size=64, intermediate_size=32)
    tensors = weights(source)
    for name in [name for name in tensors if ".experts." in name]:
        stem, _, part = name.rpartition(".")
        for expert, weight in enumerate(tensors.pop(name).transpose(1, 2)):
            parts = {"down_proj": weight}
            if part == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), weight.chunk(2), strict=True))
            for own, matrix in parts.items():
                stored, _ = int4_group(matrix.contiguous())
                for suffix, tensor in stored.items():
                    tensors[f"{stem}.{expert}.{own}.{suffix}"] = tensor
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    form = ct("pack-quantized", num_bits=4, strategy="group", group_size=32)
    form["ignore"] = ["lm_head", "re:.*self_attn.*", "re:.*router$", "re:.*shared_expert.*"]
    form["ignore"].append("re:.*feed_forward[.](gate|up|down)_proj")
    edit_config(source, quantization_config=form)
    whole_job(source, tmp_path)


@pytest.mark.parametrize("nested", [False, True], ids=["top", "in-text-config"])
def test_fp8_text_model_inside_a_wrapper(nested: bool, tmp_path: Path) -> None:
    from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

    text = tiny_config("qwen3_5_moe", hidden_size=64, moe_intermediate_size=32).to_dict()
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2}
    vision |= {"out_hidden_size": 64, "num_position_embeddings": 16}
    model = Qwen3_5MoeForConditionalGeneration(
        Qwen3_5MoeConfig(text_config=text, vision_config=vision)
    )
    fill(model.float().eval())
    source = tmp_path / "model"
    model.save_pretrained(source)
    add_tokenizer(source)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in weights(source).items():
        if ".experts." in name:
            stored, _ = fp8_blocks(tensor)
            tensors |= {name.removesuffix("weight") + end: made for end, made in stored.items()}
        else:
            tensors[name] = tensor
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    skip = ["self_attn", "linear_attn", "mlp.gate", "shared_expert", "lm_head", "model.visual"]
    form = {**FP8, "weight_block_size": [16, 32], "modules_to_not_convert": skip}
    if nested:
        config = json.loads((source / "config.json").read_text())
        edit_config(source, text_config={**config["text_config"], "quantization_config": form})
    else:
        edit_config(source, quantization_config=form)
    whole_job(source, tmp_path)

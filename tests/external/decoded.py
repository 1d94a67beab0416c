"""A quantised checkpoint as plain numbers, by the functions of those who made its formats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_NF4 = ".quant_state.bitsandbytes__nf4"


def decoded_checkpoint(folder: Path, out: Path) -> Path:
    """Write ``folder`` into ``out`` with every quantised weight as float32, and return ``out``."""
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors*", "*.py"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings = config.pop("quantization_config")
    config.pop("auto_map", None)
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    stored: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        stored |= load_file(file)
    read = {"compressed-tensors": _packed, "fp8": _fp8, "bitsandbytes": _nf4}
    save_file(read[settings["quant_method"]](stored, settings), out / "model.safetensors")
    return out


def _packed(stored: dict[str, torch.Tensor], settings: dict) -> dict[str, torch.Tensor]:
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    plain: dict[str, torch.Tensor] = {}
    for name, tensor in stored.items():
        weight, _, part = name.rpartition("_")
        if not weight.endswith(".weight"):
            plain[name] = tensor
        elif part == "packed":
            shape = torch.Size(stored[f"{weight}_shape"].tolist())
            scale = stored[f"{weight}_scale"].float()
            bits, group = 32 * tensor.shape[1] // shape[1], shape[1] // scale.shape[1]
            numbers = unpack_from_int32(tensor, bits, shape).float()
            plain[weight] = numbers * scale.repeat_interleave(group, 1)
    return plain


def _fp8(stored: dict[str, torch.Tensor], settings: dict) -> dict[str, torch.Tensor]:
    rows, columns = settings["weight_block_size"]
    plain = {name: tensor for name, tensor in stored.items() if not name.endswith("_scale_inv")}
    for name, scale in stored.items():
        if name.endswith("_scale_inv"):
            weight = plain[name.removesuffix("_scale_inv")].float()
            wide = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
            weight = weight * wide[: weight.shape[0], : weight.shape[1]]
            plain[name.removesuffix("_scale_inv")] = weight
    return plain


def _nf4(stored: dict[str, torch.Tensor], settings: dict) -> dict[str, torch.Tensor]:
    from bitsandbytes.functional import QuantState, dequantize_4bit

    assert settings["bnb_4bit_quant_type"] == "nf4"
    plain = {name: tensor for name, tensor in stored.items() if ".weight." not in name}
    for name in stored:
        if name.endswith(_NF4):
            weight = name.removesuffix(_NF4)
            parts = {key: part for key, part in stored.items() if key.startswith(f"{weight}.")}
            state = QuantState.from_dict(parts, torch.device("cpu"))
            plain[weight] = dequantize_4bit(stored[weight], state).float()
    return plain

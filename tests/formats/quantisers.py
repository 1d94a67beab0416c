"""Stored formats as their own tools lay them out, in a few lines each, and what they mean.

A quantiser gets a weight (out, in) and returns the stored tensors by suffix and the weight that
they stand for: the reference that no loader had a hand in.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]
E4M3 = torch.float8_e4m3fn
# QLoRA, appendix E.
NF4 = torch.tensor(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ]
)  # fmt: skip
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def scaled_blocks(
    weight: torch.Tensor, rows: int, cols: int, top: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales (out/rows, in/cols), so that no block exceeds ``top``; and them at every weight."""
    out, into = weight.shape
    blocks = weight.reshape(out // rows, rows, into // cols, cols)
    scale = blocks.abs().amax(dim=(1, 3)) / top
    return scale, scale.repeat_interleave(rows, 0).repeat_interleave(cols, 1)


def fp8_blocks(weight: torch.Tensor, rows: int = 16, cols: int = 32) -> Stored:
    scale, full = scaled_blocks(weight, rows, cols, 448.0)
    codes = (weight / full).to(E4M3)
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * full


def fp8_rows_inv(weight: torch.Tensor) -> Stored:
    return fp8_blocks(weight, 1, weight.shape[1])


def fp8_named_scale(weight: torch.Tensor) -> Stored:
    """As DeepSeek V4 names it."""
    stored, plain = fp8_blocks(weight)
    return {"weight": stored["weight"], "scale": stored["weight_scale_inv"]}, plain


def fp8_static(weight: torch.Tensor) -> Stored:
    """One scale a tensor, and one for its activations."""
    scale = weight.abs().max() / 448.0
    codes = (weight / scale).to(E4M3)
    activation = torch.tensor(0.02)
    return {
        "weight": codes,
        "weight_scale_inv": scale,
        "activation_scale": activation,
    }, codes.float() * scale


def fp8_channel(weight: torch.Tensor) -> Stored:
    scale, full = scaled_blocks(weight, 1, weight.shape[1], 448.0)
    codes = (weight / full).to(E4M3)
    return {"weight": codes, "weight_scale": scale}, codes.float() * full


def modelopt_fp8(weight: torch.Tensor) -> Stored:
    scale = weight.abs().max() / 448.0
    codes = (weight / scale).to(E4M3)
    activation = torch.tensor(0.02)
    return {
        "weight": codes,
        "weight_scale": scale,
        "input_scale": activation,
    }, codes.float() * scale


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned codes (rows, n) into int32 (rows, n · bits / 32), the first one lowest."""
    per = 32 // bits
    groups = codes.long().reshape(codes.shape[0], -1, per)
    word = (groups << (torch.arange(per) * bits)).sum(-1)
    return torch.where(word >= 2**31, word - 2**32, word).to(torch.int32)


def pack_quantized(weight: torch.Tensor, *, bits: int, group: int) -> Stored:
    scale, full = scaled_blocks(weight, 1, group, (2**bits - 1) / 2)
    codes = (weight / full).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    stored = {
        "weight_packed": pack(codes + 2 ** (bits - 1), bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
    }
    return stored, codes * full


def int4_group(weight: torch.Tensor) -> Stored:
    return pack_quantized(weight, bits=4, group=32)


def int8_channel(weight: torch.Tensor) -> Stored:
    return pack_quantized(weight, bits=8, group=weight.shape[1])


def int4_asymmetric(weight: torch.Tensor) -> Stored:
    stored, plain = int4_group(weight)
    zeros = torch.full((weight.shape[0] // 8, weight.shape[1] // 32), 5, dtype=torch.int32)
    return {**stored, "weight_zero_point": zeros}, plain


def int8_plain(weight: torch.Tensor) -> Stored:
    scale, full = scaled_blocks(weight, 1, weight.shape[1], 127.0)
    codes = (weight / full).round().to(torch.int8)
    return {"weight": codes, "weight_scale": scale}, codes.float() * full


def fp4_codes(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two E2M1 codes a byte, the first one low; and the numbers they stand for."""
    nearest = (values.abs()[..., None] - FP4).abs().argmin(-1)
    codes = nearest + 8 * (values < 0)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8), FP4[nearest] * values.sign()


def mxfp4(weight: torch.Tensor) -> Stored:
    largest, _ = scaled_blocks(weight, 1, 32, 1.0)
    exponent = largest.log2().floor() - 2
    full = exponent.exp2().repeat_interleave(32, 1)
    packed, values = fp4_codes((weight / full).clamp(-6, 6))
    return {
        "weight_packed": packed,
        "weight_scale": (exponent + 127).to(torch.uint8),
    }, values * full


def nvfp4(weight: torch.Tensor) -> Stored:
    overall = 448.0 * 6.0 / weight.abs().max()
    scale, _ = scaled_blocks(weight, 1, 16, 6.0)
    scale = (scale * overall).to(E4M3)
    full = (scale.float() / overall).repeat_interleave(16, 1)
    packed, values = fp4_codes((weight / full).clamp(-6, 6))
    stored = {
        "weight_packed": packed,
        "weight_scale": scale,
        "weight_global_scale": overall.reshape(1),
        "input_global_scale": torch.tensor([3.0]),
    }
    return stored, values * full


def modelopt_nvfp4(weight: torch.Tensor) -> Stored:
    stored, plain = nvfp4(weight)
    second = 1 / stored["weight_global_scale"]
    return {
        "weight": stored["weight_packed"],
        "weight_scale": stored["weight_scale"],
        "weight_scale_2": second.reshape(()),
        "input_scale": torch.tensor(0.02),
    }, plain


def gptq(weight: torch.Tensor) -> Stored:
    """4 bits, groups of 32 along the input, zero point 8 stored as 7, packed along the input."""
    scale, full = scaled_blocks(weight, 1, 32, 7.0)
    codes = (weight / full).round().clamp(-8, 7) + 8
    groups, out = weight.shape[1] // 32, weight.shape[0]
    return {
        "qweight": pack(codes, 4).T.contiguous(),
        "qzeros": pack(torch.full((groups, out), 7), 4),
        "scales": scale.T.half().contiguous(),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // 32,
    }, (codes - 8) * full


def awq(weight: torch.Tensor) -> Stored:
    """4 bits, packed along the output in AWQ's order of columns."""
    scale, full = scaled_blocks(weight, 1, 32, 7.0)
    codes = (weight / full).round().clamp(-8, 7) + 8
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def packed(values: torch.Tensor) -> torch.Tensor:
        return pack(values.reshape(values.shape[0], -1, 8)[..., order].flatten(1), 4)

    groups, out = weight.shape[1] // 32, weight.shape[0]
    return {
        "qweight": packed(codes.T),
        "qzeros": packed(torch.full((groups, out), 8)),
        "scales": scale.T.half().contiguous(),
    }, (codes - 8) * full


def nf4(weight: torch.Tensor) -> Stored:
    """Double quantisation: the state's JSON states an offset, as long as its digits."""
    blocks = weight.reshape(-1, 64)
    absmax = blocks.abs().amax(1)
    table = NF4
    codes = (blocks / absmax[:, None])[..., None].sub(table).abs().argmin(-1).flatten()
    offset = float(absmax.mean())
    nested = (absmax - offset).abs().max()
    quantised = ((absmax - offset) / nested * 127).round() + 128
    read = (quantised - 128) / 127 * nested + offset
    state = {
        "quant_type": "nf4",
        "blocksize": 64,
        "dtype": "float32",
        "shape": list(weight.shape),
        "nested_blocksize": 256,
        "nested_dtype": "float32",
        "nested_offset": offset,
    }
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return {
        "weight": (codes[0::2] << 4 | codes[1::2]).to(torch.uint8)[:, None],
        "weight.absmax": quantised.to(torch.uint8),
        "weight.quant_map": table.clone(),
        "weight.nested_absmax": nested.reshape(1),
        "weight.nested_quant_map": (torch.arange(256) - 128) / 127,
        "weight.quant_state.bitsandbytes__nf4": text,
    }, (table[codes].reshape(-1, 64) * read[:, None]).reshape(weight.shape)


def ct(form: str, **weights: Any) -> dict[str, Any]:
    """compressed-tensors settings with one group for all Linear modules."""
    stated = {"dynamic": False, "symmetric": True, "type": "int", "group_size": None, **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp[.]gate$", "re:.*layers[.]1[.]mlp.*"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "format": form,
                "input_activations": None,
                "output_activations": None,
                "weights": stated,
            }
        },
    }


@dataclass(frozen=True)
class Format:
    """One way to store the experts of a small Qwen3-MoE."""

    quantise: Callable[[torch.Tensor], Stored]
    settings: dict[str, Any]
    ignore: str  # the list that names modules
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    plain_layer: int | None = 3  # its experts stay unquantised, and the list names each of them


SKIP = ["lm_head", "self_attn", "mlp.gate", "layers.1.mlp"]
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
TENSOR = {"type": "float", "num_bits": 4, "group_size": 16, "strategy": "tensor_group"}

# Formats that transformers turns back into the right numbers on a CPU.
LOADED: dict[str, Format] = {
    "fp8-blocks": Format(
        fp8_blocks,
        {**FP8, "weight_block_size": [16, 32], "modules_to_not_convert": SKIP},
        "modules_to_not_convert",
    ),
    "fp8-rows": Format(
        fp8_rows_inv,
        {**FP8, "weight_block_size": None, "modules_to_not_convert": SKIP},
        "modules_to_not_convert",
    ),
    "fp8-named-scale": Format(
        fp8_named_scale,
        {**FP8, "weight_block_size": [16, 32], "modules_to_not_convert": SKIP},
        "modules_to_not_convert",
    ),
    "fp8-static": Format(
        fp8_static,
        {
            **FP8,
            "activation_scheme": "static",
            "weight_block_size": None,
            "modules_to_not_convert": SKIP,
        },
        "modules_to_not_convert",
    ),
    "ct-float-tensor": Format(
        modelopt_fp8,  # the same three tensors
        ct("float-quantized", num_bits=8, type="float", strategy="tensor"),
        "ignore",
    ),
    "ct-float-channel": Format(
        fp8_channel,
        ct("float-quantized", num_bits=8, type="float", strategy="channel"),
        "ignore",
    ),
    "ct-pack-int4": Format(
        int4_group,
        ct("pack-quantized", num_bits=4, strategy="group", group_size=32),
        "ignore",
        plain_layer=None,
    ),
    "ct-pack-int8": Format(
        int8_channel,
        ct("pack-quantized", num_bits=8, strategy="channel"),
        "ignore",
        plain_layer=None,
    ),
    "ct-mxfp4": Format(
        mxfp4,
        ct("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
        "ignore",
        plain_layer=None,
    ),
}

LOADED["ct-pack-partly"] = Format(
    int4_group, ct("pack-quantized", num_bits=4, strategy="group", group_size=32), "ignore"
)
LOADED["bitsandbytes-nf4"] = Format(
    nf4,
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": SKIP},
    "llm_int8_skip_modules",
    plain_layer=None,
)

# Formats that other runtimes read; and the words with which running them here is refused.
OTHERS: dict[str, tuple[Format, str]] = {
    "ct-nvfp4": (
        Format(nvfp4, ct("nvfp4-pack-quantized", **TENSOR), "ignore"),
        "global scales",
    ),
    "ct-pack-asymmetric": (
        Format(
            int4_asymmetric,
            ct("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False),
            "ignore",
        ),
        "zero points",
    ),
    "ct-int8": (
        Format(int8_plain, ct("int-quantized", num_bits=8, strategy="channel"), "ignore"),
        "not packed",
    ),
    "gptq": (
        Format(
            gptq,
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "dynamic": {}},
            "dynamic",
            {"quantize_config.json": {"bits": 4, "group_size": 32, "dynamic": {}}},
        ),
        "GPTQ",
    ),
    "awq": (
        Format(
            awq,
            {"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": SKIP},
            "modules_to_not_convert",
        ),
        "AWQ",
    ),
    "modelopt-fp8": (
        Format(
            modelopt_fp8,
            {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": SKIP},
            "ignore",
            {
                "hf_quant_config.json": {
                    "quantization": {"quant_algo": "FP8", "exclude_modules": SKIP}
                }
            },
        ),
        "ModelOpt",
    ),
    "modelopt-nvfp4": (
        Format(
            modelopt_nvfp4,
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": SKIP},
            "ignore",
            {
                "hf_quant_config.json": {
                    "quantization": {"quant_algo": "NVFP4", "exclude_modules": SKIP}
                }
            },
        ),
        "ModelOpt",
    ),
}

ALL: dict[str, Format] = {**LOADED, **{name: form for name, (form, _) in OTHERS.items()}}


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


def edit_config(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}, indent=2) + "\n")


@functools.cache
def _base() -> tempfile.TemporaryDirectory[str]:
    """MoE layers 0, 2 and 3; hidden 64, experts 64 x 32. Made once, removed at the end."""
    folder = tempfile.TemporaryDirectory()
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32}
    tiny_checkpoint("qwen3_moe", Path(folder.name) / "base", **sizes)
    return folder


def experts(tensors: dict[str, torch.Tensor]) -> Iterator[str]:
    """Modules of routed experts, e.g. ``model.layers.0.mlp.experts.3.up_proj``."""
    return (name.removesuffix(".weight") for name in tensors if ".experts." in name)


def quantised(path: Path, form: Format) -> tuple[Path, dict[str, torch.Tensor]]:
    """The base with its experts stored in a format, and what every weight of it means.

    The experts of layer ``form.plain_layer`` stay unquantised: the settings name each of them.
    """
    shutil.copytree(Path(_base().name) / "base", path)
    tensors = weights(path)
    stored, meaning, named = {}, dict(tensors), []
    for module in list(experts(tensors)):
        if f"layers.{form.plain_layer}." in module:
            named.append(module)
            continue
        made, plain = form.quantise(tensors.pop(f"{module}.weight"))
        stored |= {f"{module}.{suffix}": tensor for suffix, tensor in made.items()}
        meaning[f"{module}.weight"] = plain
    save_file({**tensors, **stored}, path / "model.safetensors", metadata={"format": "pt"})
    edit_config(path, quantization_config=_naming(form.settings, form.ignore, named))
    for file, body in form.files.items():
        (path / file).write_text(json.dumps(_naming(body, form.ignore, named)))
    return path, meaning


def _naming(settings: dict[str, Any], key: str, named: list[str]) -> dict[str, Any]:
    """The settings with every module of the unquantised layer in their list."""
    made = json.loads(json.dumps(settings))
    for place in (made, made.get("quantization", {})):
        for name in {key, "exclude_modules"} & place.keys():
            if isinstance(place[name], dict):  # GPTQModel: "-:" and a pattern
                place[name] |= {"-:" + module.replace(".", r"\."): {} for module in named}
            else:
                place[name] += named
    return made

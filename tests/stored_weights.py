"""One weight as bitsandbytes and compressed-tensors themselves store it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from moeprune.core.layout import TensorInfo
from moeprune.quant import Raw

_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
}


def name_of(dtype: torch.dtype) -> str:
    """As safetensors spells it."""
    return _DTYPES[dtype]


def raw(tensor: torch.Tensor) -> Raw:
    tensor = tensor.detach().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return Raw(TensorInfo(name_of(tensor.dtype), tuple(tensor.shape), len(data)), data)


def raws(tensors: Mapping[str, torch.Tensor]) -> dict[str, Raw]:
    return {name: raw(tensor) for name, tensor in tensors.items()}


def bnb_nf4(
    weight: torch.Tensor, *, nested: bool, block: int = 64
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors that bitsandbytes stores, and what it makes of them again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bitsandbytes import functional

        packed, state = functional.quantize_4bit(
            weight, blocksize=block, quant_type="nf4", compress_statistics=nested
        )
        plain = functional.dequantize_4bit(packed, state)
    beside = {f"weight.{name}": t for name, t in state.as_dict(packed=True).items()}
    return {"weight": packed, **beside}, plain


def ct_pack(
    weight: torch.Tensor, *, bits: int, group: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors that compressed-tensors stores, and what it makes of them again."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(num_bits=bits, type="int", strategy="group", group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format="pack-quantized")
    grouped = weight.reshape(weight.shape[0], -1, group)
    scale, _ = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    compressor: Any = BaseCompressor.get_value_from_registry("pack-quantized")
    made = dict(compressor.compress({"weight": weight, "weight_scale": scale}, scheme))
    plain = compressor.decompress(dict(made), scheme)["weight"]
    return made, plain


def fp8_block(weight: torch.Tensor, block: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """As DeepSeek describes it: the largest number of a block becomes 448."""
    out, into = weight.shape
    rows, columns = min(block, out), min(block, into)
    blocks = weight.float().reshape(out // rows, rows, into // columns, columns)
    scale = (blocks.abs().amax(dim=(1, 3)) / 448).clamp(min=1e-12)
    full = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    codes = (weight.float() / full).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * full

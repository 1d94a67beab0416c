"""Quantised weights as plain numbers, at the speed of torch: what is quantised anew starts here.

:func:`moeprune.quant.plain_weight` reads the same formats apart from this, slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moeprune.quant._numbers import Raw
from moeprune.quant._reading import raw_bytes

if TYPE_CHECKING:
    import torch

_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FLOATS = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
_SCALES = ("weight_scale_inv", "weight_scale", "scale", "qscale_weight", "scale_inv")


def plain_tensor(parts: Mapping[str, Raw], settings: Mapping[str, Any]) -> torch.Tensor | None:
    """The weight that the stored tensors of one linear map stand for.

    Args:
        parts: suffix -> tensor, of one expert: ``weight``, ``weight_packed``, ``blocks``,
            ``weight.absmax``, ….
        settings: the quantisation settings.

    Returns:
        (out, in) float32, or None for a layout that this does not read.
    """
    import torch

    if "blocks" in parts and "scales" in parts:
        numbers, exponents = _fp4(_tensor(parts["blocks"])), _scale(parts["scales"])
        return (numbers * exponents[..., None]).flatten(-2)
    if "weight.absmax" in parts:
        return _four_bit(parts)
    if "qweight" in parts:
        return _words_by_input(parts, settings)
    scale = next((parts[name] for name in _SCALES if name in parts), None)
    if "weight_packed" in parts:
        return None if scale is None else _packed(parts, scale)
    weight = parts.get("weight")
    if weight is None or len(weight.info.shape) != 2:
        return None
    codes = _tensor(weight)
    if weight.info.dtype == "U8" and "weight_scale_2" in parts and scale is not None:
        whole = _tensor(parts["weight_scale_2"]).float().reshape(())
        return _times(_fp4(codes), _scale(scale) * whole)
    if weight.info.dtype == "I8":
        if "SCB" in parts:
            return codes.float() * (_tensor(parts["SCB"]).float()[:, None] / 127)
        # Two FP4 numbers a byte have no type of their own; whole INT8 numbers have "weight_scale".
        values = codes.float() if "weight_scale" in parts else _fp4(codes)
        return None if scale is None else _times(values, _scale(scale))
    if weight.info.dtype not in _FLOATS:
        return None
    if scale is None:
        return None if weight.info.dtype.startswith("F8") else codes.float()
    block = settings.get("weight_block_size")
    pair = (block[0], block[1]) if isinstance(block, list) and len(block) == 2 else None
    return _times(codes.to(torch.float32, copy=True), _scale(scale), pair)


def plain_bytes(weight: torch.Tensor, dtype: str) -> memoryview:
    """The bytes of a weight in a plain type, rounded half to even.

    Args:
        weight: of a floating type.
        dtype: as safetensors spells it: BF16, F16, F32 or F64.
    """
    import torch

    types = {"BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}
    made = weight.to(types.get(dtype, torch.float32)).contiguous()
    return made.reshape(-1).view(torch.uint8).numpy().data


def _tensor(raw: Raw) -> torch.Tensor:
    import torch

    types = {
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I64": torch.int64,
        "I32": torch.int32,
        "I8": torch.int8,
    }
    return raw_bytes(raw.data).view(types.get(raw.info.dtype, torch.uint8)).reshape(raw.info.shape)


def _scale(raw: Raw) -> torch.Tensor:
    """Scales in float32; whole bytes (E8M0) are exponents of two."""
    import torch

    values = _tensor(raw)
    if raw.info.dtype in ("U8", "F8_E8M0"):
        return torch.exp2(values.float() - 127)
    return values.float()


def _fp4(codes: torch.Tensor) -> torch.Tensor:
    """E2M1 numbers, two a byte of the last axis, the first one in the low half."""
    import torch

    half = torch.tensor([*_FP4, *(-number for number in _FP4)])
    pairs = torch.stack([half.repeat(16), half.repeat_interleave(16)], dim=-1)
    return pairs[codes.view(torch.uint8).int()].flatten(-2)


def _times(
    values: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] | None = None
) -> torch.Tensor:
    """Numbers (out, in) times a grid of scales: each for its block of rows and columns."""
    grid = scale.reshape(1, 1) if scale.numel() == 1 else scale.reshape(-1, scale.shape[-1])
    for axis, size in enumerate(values.shape):
        count = grid.shape[axis]
        if count == size or grid.numel() == 1:
            continue
        if count == 1 and axis == 1:  # one a row
            continue
        step = block[axis] if block else size // max(count, 1)
        fits = step > 0 and count == -(-size // step) and (block is not None or size % count == 0)
        if not fits:
            raise ValueError(f"scales {[*scale.shape]} of numbers {[*values.shape]}")
        grid = grid.repeat_interleave(step, dim=axis).narrow(axis, 0, size)
    return values.mul_(grid)


def _packed(parts: Mapping[str, Raw], scale: Raw) -> torch.Tensor | None:
    import torch

    if "weight_zero_point" in parts or "weight_g_idx" in parts:
        return None
    codes, whole = _tensor(parts["weight_packed"]), parts.get("weight_global_scale")
    if codes.dtype == torch.uint8:
        full = _scale(scale)
        return _times(
            _fp4(codes), full if whole is None else full / _tensor(whole).float().reshape(())
        )
    if "weight_shape" not in parts or codes.dtype != torch.int32:
        return None
    columns = int(_tensor(parts["weight_shape"])[-1])
    bits = codes.shape[-1] * 32 // max(columns, 1)
    if bits not in (4, 8):
        return None
    values = _unpacked(codes, bits).float()[:, :columns] - 2 ** (bits - 1)
    return _times(values, _scale(scale))


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned numbers of 4 or 8 bits in the last axis of int32 words, lowest bits first."""
    import torch

    codes = words.contiguous().view(torch.uint8)  # little-endian
    if bits == 8:
        return codes
    return torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)


def _four_bit(parts: Mapping[str, Raw]) -> torch.Tensor | None:
    """NF4 and FP4 of bitsandbytes: the first of two numbers in the high half of a byte."""
    import json

    import torch

    state = next((p for name, p in parts.items() if name.startswith("weight.quant_state.")), None)
    if state is None:
        return None
    said = json.loads(bytes(state.data))
    absmax = _tensor(parts["weight.absmax"])
    if "weight.nested_absmax" in parts:
        nested = _tensor(parts["weight.nested_absmax"]).float()
        table = _tensor(parts["weight.nested_quant_map"]).float()
        steps = nested.repeat_interleave(said["nested_blocksize"])[: absmax.numel()]
        absmax = table[absmax.int()] * steps + float(said["nested_offset"])
    half = _tensor(parts["weight.quant_map"]).float()
    pairs = torch.stack([half.repeat_interleave(16), half.repeat(16)], dim=-1)
    values = pairs[_tensor(parts["weight"]).reshape(-1).int()].reshape(-1)
    out, into = said["shape"]
    size = int(said["blocksize"])
    short = absmax.numel() * size - values.numel()
    values = torch.nn.functional.pad(values, (0, short)).reshape(-1, size)
    values *= absmax.float().reshape(-1, 1)
    return values.reshape(-1)[: out * into].reshape(out, into)


def _words_by_input(parts: Mapping[str, Raw], settings: Mapping[str, Any]) -> torch.Tensor | None:
    """GPTQ (words along the input) and AWQ (along the output, in an order of its own)."""
    import torch

    if "scales" not in parts or "qzeros" not in parts:
        return None
    words, zeros = _tensor(parts["qweight"]), _tensor(parts["qzeros"])
    scales = _tensor(parts["scales"]).float()
    out = scales.shape[-1]
    bits = zeros.shape[-1] * 32 // out
    if bits not in (4, 8):
        return None
    if str(settings.get("quant_method")).lower() == "awq":
        if bits != 4:
            return None
        order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])

        def ordered(packed: torch.Tensor) -> torch.Tensor:
            codes = _unpacked(packed, 4)
            return codes.reshape(codes.shape[0], -1, 8)[..., order].flatten(1).float()

        values, middle = ordered(words), ordered(zeros)
    else:
        values = _unpacked(words.T.contiguous(), bits).T.float()
        # Version 1 of the format stores a zero point less one.
        less = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
        middle = _unpacked(zeros, bits).float() + less
    inputs = values.shape[0]
    if "g_idx" in parts:
        group = _tensor(parts["g_idx"]).long()
    else:
        group = torch.arange(inputs) // -(-inputs // scales.shape[0])
    return ((values - middle[group]) * scales[group]).T.contiguous()

"""What a quantised weight becomes as a plain one, told before its numbers are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from moeprune.core.layout import TensorInfo

_SCALES = ("weight_scale_inv", "weight_scale", "scale", "qscale_weight", "scale_inv")
_WORD_BITS = 32
_FLOATS = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


def plain_shape(
    parts: Mapping[str, TensorInfo],
    settings: Mapping[str, Any],
    read: Callable[[str], bytes],
) -> tuple[int, int] | None:
    """(out, in) of the weight that stored tensors stand for; None: it cannot be read.

    Where this gives a shape, :func:`moeprune.quant.plain_tensor` gives a weight.

    Args:
        parts: suffix -> tensor, of one expert.
        settings: the quantisation settings.
        read: gives the bytes of a part; asked for what is small and no number.
    """
    if "blocks" in parts and "scales" in parts:
        shape = parts["blocks"].shape
        return (shape[0], 2 * shape[1] * shape[2]) if len(shape) == 3 else None
    if "weight.absmax" in parts:
        return _stated(parts, read)
    if "qweight" in parts:
        return _words(parts, settings)
    scaled = any(name in parts for name in _SCALES)
    if "weight_packed" in parts:
        return _packed(parts, read) if scaled else None
    weight = parts.get("weight")
    if weight is None or len(weight.shape) != 2:
        return None
    out, into = weight.shape
    if weight.dtype == "U8":
        return (out, 2 * into) if scaled and "weight_scale_2" in parts else None
    if weight.dtype == "I8":
        if "SCB" in parts or "weight_scale" in parts:
            return out, into
        return (out, 2 * into) if scaled else None
    if weight.dtype not in _FLOATS or (weight.dtype.startswith("F8") and not scaled):
        return None
    return out, into


def _stated(
    parts: Mapping[str, TensorInfo], read: Callable[[str], bytes]
) -> tuple[int, int] | None:
    """Of bitsandbytes: in the JSON beside the weight."""
    state = next((name for name in parts if name.startswith("weight.quant_state.")), None)
    if state is None or "weight.quant_map" not in parts:
        return None
    try:
        shape = json.loads(read(state))["shape"]
        out, into = shape
    except (ValueError, KeyError, TypeError):
        return None
    return (int(out), int(into))


def _packed(
    parts: Mapping[str, TensorInfo], read: Callable[[str], bytes]
) -> tuple[int, int] | None:
    if "weight_zero_point" in parts or "weight_g_idx" in parts:
        return None
    packed = parts["weight_packed"]
    if len(packed.shape) != 2:
        return None
    out, words = packed.shape
    if packed.dtype == "U8":
        return out, 2 * words
    if packed.dtype != "I32" or "weight_shape" not in parts:
        return None
    columns = int.from_bytes(read("weight_shape")[-parts["weight_shape"].nbytes // 2 :], "little")
    bits = words * _WORD_BITS // max(columns, 1)
    return (out, columns) if bits in (4, 8) else None


def _words(parts: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """Of GPTQ (packed along the input) and AWQ (along the output)."""
    if "scales" not in parts or "qzeros" not in parts:
        return None
    words, out = parts["qweight"].shape, parts["scales"].shape[-1]
    bits = parts["qzeros"].shape[-1] * _WORD_BITS // max(out, 1)
    if str(settings.get("quant_method")).lower() == "awq":
        return (out, words[0]) if bits == 4 else None
    return (out, words[0] * _WORD_BITS // bits) if bits in (4, 8) else None

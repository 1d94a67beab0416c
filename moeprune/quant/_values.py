"""How many parameters the tensors of a quantised checkpoint stand for: packed ones unpacked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from moeprune.core.layout import TensorInfo
from moeprune.quant._format import StoredFormat
from moeprune.quant.compressed_tensors import bits_of

_CODES = frozenset({"F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "U8", "I8", "I32"})
_WORD_BITS = 32
# What stands beside a quantised weight, by what follows the weight's own name or its module's.
_BESIDE = re.compile(
    r"(?:[._]|^)(?:scales?|scale_inv|scale_2|q?scale_(?:weight|act)|scb|absmax|quant_map|zero_point"
    r"|(?:weight|input|activation|output)(?:_global)?_scale(?:_inv|_2)?|qzeros|g_idx|shape|blocks"
    r"|nested_absmax|nested_quant_map|quant_state\..+|(?:weight_)?format)$",
    re.IGNORECASE,
)


def values_of(stored: StoredFormat | None, tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    """Parameters that each stored tensor stands for, where its shape does not say.

    Args:
        stored: the format; None: of an unquantised checkpoint.
        tensors: all tensors.

    Returns:
        Stored name -> parameters: of packed weights as many as they unpack to, of scales and what
        else stands beside a quantised weight none. Names that are not in it are plain tensors.
    """
    settings = {} if stored is None else stored.settings
    weights = {
        name: count
        for name, info in tensors.items()
        if info.dtype in _CODES and (count := _unpacked(name, tensors, settings)) is not None
    }
    owners = {owner_of(name) for name in weights}
    beside = {
        name: 0
        for name in tensors
        if name not in weights
        and any(
            name.startswith(owner) and _BESIDE.search(name.removeprefix(owner))
            for owner in _owners(name, owners)
        )
    }
    return {**weights, **beside}


def _unpacked(
    name: str, tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]
) -> int | None:
    """Parameters of a quantised weight; None of a tensor that is none."""
    info = tensors[name]
    module, _, last = name.rpartition(".")
    codes = math.prod(info.shape)
    if last == "qweight":  # int32 words; the zero points have as many bits for every output
        scales, zeros = tensors.get(f"{module}.scales"), tensors.get(f"{module}.qzeros")
        if scales is None or zeros is None or not (scales.shape and zeros.shape):
            return None
        return codes * scales.shape[-1] // max(zeros.shape[-1], 1)
    if last == "weight_packed" and info.dtype == "I32":
        bits = bits_of(module, settings)
        return None if bits is None else codes * _WORD_BITS // bits
    if last.endswith(("scales", "scale", "scale_inv", "scale_2", "zero_point", "qzeros", "g_idx")):
        return None
    if info.dtype == "F4" or (
        info.dtype == "U8" and last.endswith(("_packed", "weight", "blocks"))
    ):
        return 2 * info.nbytes
    if info.dtype == "I8" and last == "weight":
        # Two FP4 numbers a byte have no type of their own; whole INT8 numbers have these scales.
        whole = f"{name}_scale" in tensors or f"{module}.SCB" in tensors
        return codes if whole else 2 * codes
    return codes if info.dtype.startswith("F8") else None


def owner_of(weight: str) -> str:
    """What the names of everything beside a quantised weight begin with."""
    module, _, last = weight.rpartition(".")
    if last in ("weight", "qweight", "weight_packed"):
        return module
    return weight.removesuffix("_blocks")


def _owners(name: str, owners: set[str]) -> list[str]:
    """Those of ``owners`` that ``name`` may stand beside: its own beginnings, cut at . or _."""
    ends = (match.start() for match in re.finditer(r"[._]", name))
    return [beginning for end in ends if (beginning := name[:end]) in owners]

"""MXFP4 (gpt-oss): ``mxfp4``.

``experts.gate_up_proj_blocks`` uint8 (E, rows, H/32, 16), two FP4 numbers a byte, and
``_scales`` uint8 (E, rows, H/32), an exponent a block of 32; biases stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moeprune.core.layout import TensorInfo

METHODS = ("mxfp4",)
PLACES = (("modules_to_not_convert",),)
SCALES = ("scales",)


def requires(name: str, info: TensorInfo) -> Iterable[tuple[str, ...]]:
    """Blocks need their scales, and scales their blocks."""
    if name.endswith("_blocks"):
        return ((name.removesuffix("_blocks") + "_scales",),)
    if name.endswith("_scales"):
        return ((name.removesuffix("_scales") + "_blocks",),)
    return ()


def not_loaded(
    settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo], experts: Collection[str]
) -> str | None:
    """What gpt-oss stores is dequantised, and nothing else."""
    if any(name.endswith("_blocks") for name in experts):
        return None
    return "transformers reads MXFP4 as gpt-oss stores it (_blocks and _scales) only"

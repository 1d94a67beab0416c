"""NVIDIA ModelOpt FP8 and NVFP4: ``modelopt``, with its settings again in hf_quant_config.json.

FP8: ``weight`` E4M3, ``weight_scale``, ``input_scale``. NVFP4: ``weight`` uint8 (two numbers a
byte), ``weight_scale`` E4M3 (a block of 16), ``weight_scale_2`` and ``input_scale``, one number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moeprune.core.layout import TensorInfo

METHODS = ("modelopt", "modelopt_fp4", "modelopt_mixed", "nvfp4")
PLACES = (
    ("ignore",),
    ("exclude_modules",),
    ("quantized_layers",),
    ("config_groups", "*", "targets"),
    ("quantization", "ignore"),
    ("quantization", "exclude_modules"),
    ("quantization", "quantized_layers"),
)
SCALES = ("weight_scale_2", "weight_scale")


def requires(name: str, info: TensorInfo) -> Iterable[tuple[str, ...]]:
    """A quantised weight needs its scale, a packed one also the scale of its scales."""
    if not name.endswith(".weight") or info.dtype not in ("F8_E4M3", "U8"):
        return ()
    scale = ((f"{name}_scale",),)
    return (*scale, (f"{name}_scale_2",)) if info.dtype == "U8" else scale


def not_loaded(
    settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo], experts: Collection[str]
) -> str | None:
    """Loading them is refused."""
    return "transformers does not load ModelOpt checkpoints (vLLM, SGLang and TensorRT-LLM do)"

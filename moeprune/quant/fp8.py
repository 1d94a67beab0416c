"""FP8 with one scale a block, a row or a tensor (DeepSeek, Qwen, GLM, MiniMax): ``fp8``.

``weight`` is E4M3 (or FP4, two to a byte of int8); ``weight_scale_inv`` multiplies it, one value a
block of ``weight_block_size``. DeepSeek V4 calls it ``scale``, Mistral ``qscale_weight``. A fused
tensor ``experts.gate_up_proj`` has ``gate_up_proj_scale_inv``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moeprune.core.layout import TensorInfo

METHODS = ("fp8",)
PLACES = (("modules_to_not_convert",), ("modules_to_convert",), ("ignored_layers",))
SCALES = ("weight_scale_inv", "scale_inv", "weight_scale", "scale", "qscale_weight")

_FP8 = ("F8_E4M3", "F8_E5M2")
_WHOLE = ("weight_scale_inv", "scale", "qscale_weight")


def requires(name: str, info: TensorInfo) -> Iterable[tuple[str, ...]]:
    """A quantised weight needs its scale."""
    if info.dtype not in (*_FP8, "I8") or "scale" in name.rpartition(".")[2]:
        return ()
    if name.endswith(".weight"):
        stem = name.removesuffix("weight")
        return (tuple(stem + companion for companion in _WHOLE),)
    # Inkling keeps the same numbers under w13_weight / w13_weight_scale.
    return ((f"{name}_scale_inv", f"{name}_scale"),)


def not_loaded(
    settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo], experts: Collection[str]
) -> str | None:
    """Fused experts lose their scales, and blocks at the edge are read with a wrong size."""
    for name in experts:
        if tensors[name].dtype in _FP8 and not name.endswith(".weight"):
            return f"transformers ignores the scales of fused FP8 experts ({name})"
    block = settings.get("weight_block_size")
    if not isinstance(block, list) or len(block) != 2:
        return None
    for name, info in tensors.items():
        grid = tensors.get(f"{name}_scale_inv")
        if info.dtype not in _FP8 or grid is None or len(info.shape) != 2:
            continue
        # transformers divides the weight by the grid; a last block that is cut short shifts all.
        for size, count, step in zip(info.shape, grid.shape, block, strict=False):
            if count > 1 and size != count * step:
                return (
                    f"{name} {list(info.shape)} is no multiple of its blocks {block}, which "
                    "transformers would scale at the wrong places"
                )
    return None

"""FP8 with one scale a row (Llama 4): ``fbgemm_fp8``.

``experts.gate_up_proj`` (E, H, 2I) with ``gate_up_proj_scale`` (E, 1, 2I), ``experts.down_proj``
(E, I, H) with ``down_proj_scale`` (E, H, 1); elsewhere ``weight`` with ``weight_scale``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moeprune.core.layout import TensorInfo

METHODS = ("fbgemm_fp8",)
PLACES = (("modules_to_not_convert",),)
SCALES = ("weight_scale", "scale")


def requires(name: str, info: TensorInfo) -> Iterable[tuple[str, ...]]:
    """A quantised weight needs its scale."""
    return ((f"{name}_scale",),) if info.dtype == "F8_E4M3" and "scale" not in name else ()


def not_loaded(
    settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo], experts: Collection[str]
) -> str | None:
    """Its kernels read the FP8 numbers; nothing turns them back."""
    return "transformers runs FBGEMM experts in FP8 only, on a GPU of its own kind"

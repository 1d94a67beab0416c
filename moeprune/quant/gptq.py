"""GPTQ: ``gptq`` (also AutoRound's ``auto-round``).

``qweight`` int32 (in · bits/32, out), ``qzeros``, ``scales``, with or without ``g_idx``.
GPTQModel's ``dynamic`` has regular expressions as keys, with ``+:`` or ``-:`` in front; AutoRound's
``extra_config`` has module names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moeprune.core.layout import TensorInfo

METHODS = ("gptq", "auto-round", "auto_round", "intel/auto-round", "gptqmodel")
PLACES = (
    ("dynamic",),
    ("extra_config",),
    ("modules_to_not_convert",),
    ("modules_in_block_to_quantize",),
)
SCALES = ("scales",)


def requires(name: str, info: TensorInfo) -> Iterable[tuple[str, ...]]:
    """A packed weight needs its zero points and scales."""
    if not name.endswith(".qweight"):
        return ()
    stem = name.removesuffix("qweight")
    return ((f"{stem}qzeros",), (f"{stem}scales",))


def not_loaded(
    settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo], experts: Collection[str]
) -> str | None:
    """Linear layers are replaced, and experts in memory are none."""
    return "transformers does not load GPTQ experts (vLLM, SGLang and GPTQModel do)"

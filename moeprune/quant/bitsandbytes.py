"""bitsandbytes NF4, FP4 and INT8, written expert by expert (transformers 4): ``bitsandbytes``.

4 bit: ``weight`` uint8 (n, 1) with ``weight.absmax``, ``weight.quant_map`` and
``weight.quant_state.bitsandbytes__nf4``, JSON as bytes, whose length differs from expert to expert
where it states an offset (double quantisation). 8 bit: ``weight`` int8 with ``SCB``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moeprune.core.layout import TensorInfo

METHODS = ("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit")
PLACES = (("llm_int8_skip_modules",),)
SCALES = ("weight.absmax", "SCB")


def requires(name: str, info: TensorInfo) -> Iterable[tuple[str, ...]]:
    """A packed weight needs its state; an INT8 weight its row maxima."""
    if name.endswith(".weight") and info.dtype == "I8":
        return ((name.removesuffix("weight") + "SCB",),)
    if name.endswith(".weight") and info.dtype == "U8":
        states = tuple(f"{name}.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
        return ((f"{name}.absmax",), (f"{name}.quant_map",), states)
    return ()


def not_loaded(
    settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo], experts: Collection[str]
) -> str | None:
    """Four bits are read by moeprune's own reader; of eight, transformers has none."""
    for name in experts:
        if tensors[name].dtype == "I8":
            return f"transformers 5 does not load INT8 experts of bitsandbytes ({name})"
    if any(".quant_state." in name for name in experts):
        return None
    return "transformers 5 does not load such experts of bitsandbytes"

"""AWQ: ``awq``. ``qweight`` int32 (in, out/8), ``qzeros`` (in/group, out/8), ``scales``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moeprune.core.layout import TensorInfo

METHODS = ("awq",)
PLACES = (("modules_to_not_convert",), ("extra_config",))
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
    return "transformers does not load AWQ experts (vLLM and SGLang do)"

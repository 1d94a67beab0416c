"""Which code a quantised export must carry so that transformers reads it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from moeprune.architectures import family_names, keeps_no_stack, needs_merging
from moeprune.checkpoint.composing import LAYERED, MERGING, NF4
from moeprune.checkpoint.own_code import brings_code, check_plain_code, own_merged
from moeprune.core.layout import MoeLayout
from moeprune.core.quantisation import PLAIN
from moeprune.errors import UnsupportedModelError


def reading_code(
    config: Mapping[str, Any],
    layout: MoeLayout,
    rows: Collection[int],
    *,
    method: str,
    schemes: Collection[str] = (),
) -> tuple[str, ...]:
    """Parts of ``checkpoint.composing.PARTS``.

    Args:
        config: config.json of the source.
        layout: of the source.
        rows: those whose experts are quantised.
        method: ``quant_method`` of the scheme.
        schemes: of the layers, with ``mixed``.

    Raises:
        UnsupportedModelError: nobody knows how the experts would be read, or the model brings code
            of its own where ours is needed.
    """
    stacked = next((name for name in layout.splits if layout.tensors[name].row in rows), None)
    if stacked is not None and layout.model_type not in family_names():
        raise UnsupportedModelError(
            f"{stacked!r} holds all experts of a layer, and moeprune has no file of the family "
            f"{layout.model_type!r}, which would say how transformers reads them one by one. "
            "Export without --quantize, or add the family's file (docs/extend.md)."
        )
    if PLAIN in schemes and keeps_no_stack(layout, method=method):
        raise UnsupportedModelError(
            f"{layout.model_type}: transformers reads either single experts in all layers or a "
            "tensor of all experts in all; no layer may stay as it is. Use int4 or int8 for each."
        )
    ours = own_merged(config) is not None  # an export that is quantised once more
    parts: tuple[str, ...] = (MERGING,) if ours else ()
    if not ours and needs_merging(
        config.get("model_type"), layout, method=method, stacked=stacked is not None
    ):
        check_plain_code(config, option="--quantize")
        parts = (MERGING,)
    # A model with code of its own keeps it, and needs "import moeprune" for its experts.
    if method == "bitsandbytes" and (ours or not brings_code(config)):
        parts += (NF4,)
    if len({*schemes}) > 1 and not parts and not brings_code(config):
        parts = (LAYERED,)
    return parts

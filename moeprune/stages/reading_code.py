"""Which code a quantised export must carry so that transformers reads it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from moeprune.architectures import family_names, needs_merging
from moeprune.checkpoint.composing import MERGING
from moeprune.checkpoint.own_code import check_plain_code
from moeprune.core.layout import MoeLayout
from moeprune.errors import UnsupportedModelError


def reading_code(
    config: Mapping[str, Any], layout: MoeLayout, sources: Collection[str], *, method: str
) -> tuple[str, ...]:
    """Parts of ``checkpoint.composing.PARTS``.

    Args:
        config: config.json of the source.
        layout: of the source.
        sources: its tensors of which something is quantised.
        method: ``quant_method`` of the scheme.

    Raises:
        UnsupportedModelError: nobody knows how the experts would be read, or the model brings code
            of its own where ours is needed.
    """
    stacked = next((name for name in sources if name in layout.splits), None)
    if stacked is not None and layout.model_type not in family_names():
        raise UnsupportedModelError(
            f"{stacked!r} holds all experts of a layer, and moeprune has no file of the family "
            f"{layout.model_type!r}, which would say how transformers reads them one by one. "
            "Export without --quantize, or add the family's file (docs/extend.md)."
        )
    if not needs_merging(
        config.get("model_type"), layout, method=method, stacked=stacked is not None
    ):
        return ()
    check_plain_code(config, option="--quantize")
    return (MERGING,)

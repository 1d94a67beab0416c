"""Which part of a model a tensor belongs to, by its name: experts, attention, shared experts."""

from __future__ import annotations

import re

from moeprune.core.names import is_text_path, names_shared

EXPERT, ATTENTION, SHARED, OTHER = PARTS = ("expert", "attention", "shared", "other")

# Modules of a decoder layer that mix tokens, as the families spell them.
_ATTENTION = frozenset(
    {
        "attention",
        "attn",
        "linear_attn",
        "linear_attention",
        "mixer",
        "self_attention",
        "self_attn",
    }
)
_IN_LAYER = re.compile(r"\.\d+\.")


def part_of(name: str) -> str:
    """The part of a tensor that is no routed expert's and no router's: one of ``PARTS``."""
    if not is_text_path(name) or not _IN_LAYER.search(name):
        return OTHER
    if names_shared(name):
        return SHARED
    return OTHER if _ATTENTION.isdisjoint(name.split(".")) else ATTENTION

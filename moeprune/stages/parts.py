"""Which part of a model a tensor belongs to, by its name: experts, attention, shared experts."""

from __future__ import annotations

import re

from moeprune.core.names import is_text_path, names_shared

EXPERT, ATTENTION, SHARED, OTHER = PARTS = ("expert", "attention", "shared", "other")

# Modules of a decoder layer that mix tokens, as the families spell them; linear attention is one.
_ATTENTION = frozenset({"attention", "attn", "linear_attn", "self_attention", "self_attn"})
# Nemotron-H calls every kind of layer so; of attention these are the projections.
_MIXER = re.compile(r"\.mixer\.[qkvo]_proj\.")
# What chooses or compresses tokens for attention, decays its state, or gates a whole module.
_APART = frozenset(
    {"attn_sink_proj", "compressor", "controllers", "gate", "gate_attn", "in_proj_a", "in_proj_b"}
    | {"in_proj_ba", "indexer", "share_expert_gate", "shared_expert_gate"}
)
_IN_LAYER = re.compile(r"\.\d+\.")


def part_of(name: str) -> str:
    """The part of a tensor that is no routed expert's and no router's: one of ``PARTS``.

    Gates of shared experts, decays of linear attention and indexers of sparse attention count as
    other: they are small, and decide.
    """
    if not is_text_path(name) or not _IN_LAYER.search(name):
        return OTHER
    parts = name.split(".")
    if not _APART.isdisjoint(parts):
        return OTHER
    if names_shared(name):
        return SHARED
    mixes = not _ATTENTION.isdisjoint(parts) or _MIXER.search(name)
    return ATTENTION if mixes else OTHER

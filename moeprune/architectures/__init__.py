"""Families as data: config.json and tensor headers say where the routed experts are.

A module of this folder is a recipe, one way to store experts, named by it: its function
``match(name, info, *, num_experts)`` says which module's experts a stored tensor holds, and how.
A file of ``families/`` is one family, named by its ``model_type``. Adding either is adding a file.
"""

from moeprune.architectures._also import reads_also
from moeprune.architectures._attention import attention_kinds
from moeprune.architectures._config import (
    GROUP_KEYS,
    TOP_GROUP_KEYS,
    TOP_K_KEYS,
    StatedExperts,
    stated_experts,
)
from moeprune.architectures._families import Family, family_names, load_family
from moeprune.architectures._layout import layout_of
from moeprune.architectures._merged import keeps_no_stack, merged_tensors, needs_merging
from moeprune.architectures._next_token import NextTokenLayers, next_token_layers
from moeprune.architectures._outputs import OutputMap, output_maps

__all__ = [
    "GROUP_KEYS",
    "TOP_GROUP_KEYS",
    "TOP_K_KEYS",
    "Family",
    "NextTokenLayers",
    "OutputMap",
    "StatedExperts",
    "attention_kinds",
    "family_names",
    "keeps_no_stack",
    "layout_of",
    "load_family",
    "merged_tensors",
    "needs_merging",
    "next_token_layers",
    "output_maps",
    "reads_also",
    "stated_experts",
]

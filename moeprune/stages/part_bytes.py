"""Bytes of an export before its weights are quantised, by part; and of what leaves with that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from moeprune.checkpoint.edits import TensorEdit
from moeprune.core.layout import MoeLayout, TensorInfo
from moeprune.stages.parts import EXPERT, OTHER, part_of
from moeprune.stages.weights import LinearMap


def part_of_edit(edit: TensorEdit, layout: MoeLayout) -> str:
    """The part of the tensor that an edit writes: one of ``parts.PARTS``."""
    rule = layout.tensors.get(edit.source)
    if rule is None:
        return part_of(edit.target)
    return EXPERT if rule.role == "expert" else OTHER


def part_bytes(edits: Sequence[TensorEdit], layout: MoeLayout) -> dict[str, int]:
    """Part -> bytes of all its tensors."""
    sizes: Counter[str] = Counter()
    for edit in edits:
        sizes[part_of_edit(edit, layout)] += edit.info.nbytes
    return sizes


def padding_bytes(edits: Sequence[TensorEdit], maps: Sequence[LinearMap]) -> int:
    """Bytes of padding in the tensors that maps are read from.

    Args:
        edits: as the source stores them.
        maps: the matrices that are to be quantised.
    """
    sources = {piece.source for at in maps for piece in at.pieces}
    return sum(
        edit.info.nbytes * edit.pad // edit.info.shape[edit.axis]
        for edit in edits
        if edit.pad and edit.source in sources
    )


def turned(before: Sequence[TensorEdit], after: Sequence[TensorEdit]) -> dict[str, TensorInfo]:
    """What stood beside quantised weights that are plain now: nothing of it is left.

    Args:
        before: as the source stores them.
        after: with plain weights.

    Returns:
        Tensor of the source -> no bytes.
    """
    left = {edit.source for edit in after}
    return {
        edit.source: TensorInfo(edit.info.dtype, edit.info.shape, 0)
        for edit in before
        if edit.source not in left
    }

"""Single experts' weights out of a tensor that holds all experts of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.header import DTYPE_BITS
from moeprune.checkpoint.making import Bytes, Piece
from moeprune.checkpoint.scaling import scaled_edit
from moeprune.core.layout import ExpertTensor, TensorInfo
from moeprune.core.split import Split
from moeprune.quant import Numbers, tensor_of


@dataclass(frozen=True, slots=True)
class StackedMap:
    """One map of one expert.

    Attributes:
        module: its name in the export.
        expert: id in the source; None: padding.
        shape: (out, in).
        piece: what is read for it: the whole of the expert, or where that is one run of bytes, the
            map alone.
        numbers: what makes a weight of it.
    """

    module: str
    expert: int | None
    shape: tuple[int, int]
    piece: Piece
    numbers: Numbers


def stacked_maps(
    edit: TensorEdit, stored: TensorInfo, split: Split, rule: ExpertTensor, *, num_experts: int
) -> Iterator[StackedMap]:
    """The maps of every expert that an edit keeps, expert by expert.

    Args:
        edit: of the tensor of all experts.
        stored: the tensor in the source, of a plain type.
        split: how it falls apart.
        rule: where the experts lie in it.
        num_experts: experts of the layer in the source.
    """
    slab = (rule.block, *stored.shape[1:]) if rule.block > 1 else stored.shape[1:]
    assert len(slab) == 2
    shape = split.shape((slab[0], slab[1]))
    nbytes = stored.nbytes // (num_experts * rule.block) * rule.block
    in_one_run = not split.transposed and not split.interleaved
    ids = range(num_experts) if edit.ids is None else edit.ids
    padded: list[int | None] = [None] * (edit.pad // rule.block)
    for number, expert in enumerate([*ids, *padded]):
        for place, name in enumerate(split.maps):
            module = split.target(number, name).removesuffix(".weight")
            if expert is None:
                piece = Piece(edit.source, stored.dtype, slab, 0, 0)
                yield StackedMap(module, None, shape, piece, _zeros(edit, shape))
                continue
            start = expert * nbytes
            if in_one_run:
                size = nbytes // len(split.maps)
                start += place * size
                piece = Piece(edit.source, stored.dtype, shape, start, start + size)
                numbers = _numbers(edit, shape)
            else:
                piece = Piece(edit.source, stored.dtype, slab, start, start + nbytes)
                numbers = _numbers(edit, slab, split, place)
            yield StackedMap(module, expert, shape, piece, numbers)


def _numbers(
    edit: TensorEdit, read: tuple[int, ...], split: Split | None = None, place: int = 0
) -> Numbers:
    """A map's numbers: those that are read, or of a slab of all maps the ``place``-th part."""

    def numbers(data: Sequence[Bytes]) -> Any:
        found = data[0] if edit.factor == 1.0 else scaled_edit(data[0], edit)
        tensor = tensor_of(found, edit.info.dtype, read)
        return tensor if split is None else split.cut(tensor)[place].contiguous()

    return numbers


def _zeros(edit: TensorEdit, shape: tuple[int, int]) -> Numbers:
    """What padding is."""
    size = prod(shape) * DTYPE_BITS[edit.info.dtype] // 8
    return lambda data: tensor_of(bytes(size), edit.info.dtype, shape)

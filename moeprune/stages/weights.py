"""Linear maps of an export: which tensors are matrices, whose they are, and what they come from.

An expert of its own tensors has a map in each of them; one that shares a tensor with all experts of
its layer has a piece of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.header import DTYPE_BITS
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.making import Bytes, Piece
from moeprune.checkpoint.scaling import scaled_edit
from moeprune.core.layout import ExpertTensor, MoeLayout
from moeprune.core.names import names_table
from moeprune.quant import Numbers, tensor_of
from moeprune.stages.parts import EXPERT, OTHER, part_of
from moeprune.stages.stacked import stacked_maps

PLAIN = ("BF16", "F16", "F32", "F64")
_LEAF = ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearMap:
    """One matrix of an export.

    Attributes:
        module: name of the linear module in the export: its weight's name without ``.weight``.
        edit: the edit that writes it, as an index into the edits.
        part: one of ``parts.PARTS``.
        router: whether it is a router's.
        row: of a routed expert, the MoE layer; None: of a next-token layer, or no expert's.
        expert: of a routed expert, its id in the source; None: no expert's, or padding.
        shape: (out, in).
        dtype: of the numbers, as safetensors spells it.
        pieces: what is read for it.
        numbers: what makes a weight of them.
    """

    module: str
    edit: int
    part: str
    shape: tuple[int, int]
    dtype: str
    pieces: tuple[Piece, ...]
    numbers: Numbers
    router: bool = False
    row: int | None = None
    expert: int | None = None

    @property
    def count(self) -> int:
        """Parameters."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of it as a plain tensor."""
        return self.count * DTYPE_BITS[self.dtype] // 8

    @property
    def name(self) -> str:
        """Of the map in its module, e.g. ``gate_proj``."""
        return self.module.rpartition(".")[2]


def linear_maps(
    edits: Sequence[TensorEdit], index: CheckpointIndex, layout: MoeLayout
) -> list[LinearMap]:
    """All matrices of an export, in the order of the edits.

    Tables of embeddings and routing tables are none. Of a tensor that is no matrix (a bias, a norm)
    or whose type is not plain there is no map.

    Args:
        edits: of the export before anything is quantised.
        index: the source.
        layout: of the source; next-token layers included, whose experts are experts too.
    """
    maps: list[LinearMap] = []
    for number, edit in enumerate(edits):
        rule = layout.tensors.get(edit.source)
        info = edit.info
        if edit.making is not None and rule is not None and rule.axis is not None:
            maps.append(_of_expert(number, edit, rule))
            continue
        if rule is not None and edit.source in layout.splits and info.dtype in PLAIN:
            maps += _of_stack(number, edit, rule, index, layout)
            continue
        if not edit.target.endswith(_LEAF) or len(info.shape) != 2 or info.dtype not in PLAIN:
            continue
        if names_table(edit.target) or (rule is not None and rule.role == "table"):
            continue
        if rule is not None and rule.role == "expert" and rule.axis is not None:
            continue
        maps.append(_map(number, edit, rule, index))
    return maps


def _of_expert(number: int, edit: TensorEdit, rule: ExpertTensor) -> LinearMap:
    """The matrix of one expert that was cut out of a quantised stack."""
    assert edit.making is not None
    rows, columns = edit.info.shape
    return LinearMap(
        module=edit.target.removesuffix(_LEAF),
        edit=number,
        part=EXPERT,
        row=None if rule.follows else rule.row,
        expert=edit.ids[0] if edit.ids else None,
        shape=(rows, columns),
        dtype=edit.info.dtype,
        pieces=edit.making.pieces,
        numbers=_computed(edit),
    )


def _of_stack(
    number: int, edit: TensorEdit, rule: ExpertTensor, index: CheckpointIndex, layout: MoeLayout
) -> Iterator[LinearMap]:
    """The matrices in a tensor of all experts of a layer."""
    stored = index.entries[edit.source].info
    for found in stacked_maps(
        edit, stored, layout.splits[edit.source], rule, num_experts=layout.num_experts[rule.row]
    ):
        yield LinearMap(
            module=found.module,
            edit=number,
            part=EXPERT,
            row=None if rule.follows else rule.row,
            expert=found.expert,
            shape=found.shape,
            dtype=stored.dtype,
            pieces=(found.piece,),
            numbers=found.numbers,
        )


def _map(
    number: int, edit: TensorEdit, rule: ExpertTensor | None, index: CheckpointIndex
) -> LinearMap:
    """The matrix that one tensor is."""
    stored = index.entries[edit.source].info
    rows, columns = edit.info.shape
    of_expert = rule is not None and rule.role == "expert"
    end = 0 if edit.pad else stored.nbytes
    row = rule.row if rule is not None and of_expert and not rule.follows else None
    return LinearMap(
        module=edit.target.removesuffix(_LEAF),
        edit=number,
        part=EXPERT if of_expert else OTHER if rule is not None else part_of(edit.target),
        router=rule is not None and rule.role == "router",
        row=row,
        expert=rule.expert if rule is not None and not edit.pad else None,
        shape=(rows, columns),
        dtype=edit.info.dtype,
        pieces=(Piece(edit.source, stored.dtype, stored.shape, 0, end),)
        if edit.making is None
        else edit.making.pieces,
        numbers=_numbers_of(edit),
    )


def _numbers_of(edit: TensorEdit) -> Numbers:
    if edit.making is not None:
        return _computed(edit)
    return _zeros(edit) if edit.pad else _stored(edit)


def _computed(edit: TensorEdit) -> Numbers:
    """What is made of a quantised weight."""

    def numbers(data: Sequence[Bytes]) -> Any:
        assert edit.making is not None
        found = edit.making.make(data)[edit.part]
        return tensor_of(found, edit.info.dtype, edit.info.shape)

    return numbers


def _stored(edit: TensorEdit) -> Numbers:
    """The tensor's own numbers, times its factor."""

    def numbers(data: Sequence[Bytes]) -> Any:
        found = data[0] if edit.factor == 1.0 else scaled_edit(data[0], edit)
        return tensor_of(found, edit.info.dtype, edit.info.shape)

    return numbers


def _zeros(edit: TensorEdit) -> Numbers:
    """What padding is."""
    return lambda data: tensor_of(bytes(edit.info.nbytes), edit.info.dtype, edit.info.shape)

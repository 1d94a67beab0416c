"""Quantised weights of a source as plain ones: what ``--requantize`` starts from.

A weight and all that stands beside it become one tensor in the type of the model; of a stack of all
experts, one for each map of each expert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.header import DTYPE_BITS
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.making import Bytes, Make, Making, Piece
from moeprune.checkpoint.reader import chunks
from moeprune.core.layout import ExpertTensor, MoeLayout, TensorInfo
from moeprune.core.split import Split
from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.quant import Raw, plain_bytes, plain_shape, plain_tensor, stored_format, stored_maps
from moeprune.stages.number_type import plain_type

_WEIGHT = ".weight"


def plain_edits(
    edits: Sequence[TensorEdit], index: CheckpointIndex, layout: MoeLayout
) -> list[TensorEdit]:
    """The edits, with those of plain weights in place of those of quantised ones.

    Args:
        edits: of the export that would be quantised as its source is.
        index: the source.
        layout: of the source, next-token layers included.

    Raises:
        UnsupportedModelError: a weight is stored so that its numbers cannot be read.
    """
    stored = stored_format(index.config)
    if stored is None:
        return list(edits)
    owner = {
        name: (stem, suffix)
        for stem, parts in stored_maps(stored, index.tensors).items()
        for suffix, name in parts.items()
    }
    groups: dict[tuple[str, str], dict[str, TensorEdit]] = {}
    for edit in edits:
        if edit.source in owner:
            stem, suffix = owner[edit.source]
            groups.setdefault((stem, _module(edit, stem)), {})[suffix] = edit
    plain = _Plain(
        index=index,
        layout=layout,
        settings=stored.settings,
        method=stored.method,
        dtype=plain_type(index),
    )
    made: list[TensorEdit] = []
    for edit in edits:
        if edit.source not in owner:
            made.append(edit)
            continue
        stem, _ = owner[edit.source]
        group = groups.pop((stem, _module(edit, stem)), None)
        if group is not None:  # at the place of the first of them
            made += plain.edits(stem, group)
    return made


def _module(edit: TensorEdit, stem: str) -> str:
    """What the tensors of one weight begin with in the export, where the source's do with ``stem``.

    Only the number of an expert may be another, so what follows the stem is as long.
    """
    behind = len(edit.source) - len(stem)
    return edit.target[:-behind] if behind else edit.target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    index: CheckpointIndex
    layout: MoeLayout
    settings: Mapping[str, Any]
    method: str
    dtype: str

    def edits(self, stem: str, group: Mapping[str, TensorEdit]) -> Iterator[TensorEdit]:
        """The plain tensors that a weight becomes."""
        first = next(iter(group.values()))
        rule = self.layout.tensors.get(first.source)
        if rule is not None and rule.axis is not None:
            yield from self._of_stack(stem, group, rule)
            return
        pieces = {name: self._whole(edit.source) for name, edit in group.items()}
        target = _module(first, stem) + _WEIGHT
        yield self._edit(first, target, pieces, self._shape(stem, pieces), empty=bool(first.pad))

    def _of_stack(
        self, stem: str, group: Mapping[str, TensorEdit], rule: ExpertTensor
    ) -> Iterator[TensorEdit]:
        splits = self.layout.splits
        split = next((splits[e.source] for e in group.values() if e.source in splits), None)
        if split is None:
            raise self._unreadable(stem)
        first = next(iter(group.values()))
        count = self.layout.num_experts[rule.row]
        ids = tuple(range(count)) if first.ids is None else first.ids
        padded = (None,) * (first.pad // max(1, rule.block))
        shape = self._shape(stem, {n: self._slab(e.source, 0, count) for n, e in group.items()})
        for number, expert in enumerate((*ids, *padded)):
            pieces = {
                name: self._slab(edit.source, expert or 0, count) for name, edit in group.items()
            }
            for place, name in enumerate(split.maps):
                yield self._edit(
                    first,
                    split.target(number, name),
                    pieces,
                    shape,
                    empty=expert is None,
                    split=split,
                    place=place,
                    ids=() if expert is None else (expert,),
                )

    def _edit(
        self,
        first: TensorEdit,
        target: str,
        pieces: Mapping[str, Piece],
        shape: tuple[int, int],
        *,
        empty: bool,
        split: Split | None = None,
        place: int = 0,
        ids: tuple[int, ...] | None = None,
    ) -> TensorEdit:
        whole = shape if split is None else split.shape(shape)
        size = prod(whole) * DTYPE_BITS[self.dtype] // 8
        read = tuple(pieces.values())
        if empty:
            read = (Piece(read[0].source, read[0].dtype, (0,), 0, 0),)
        making = Making(
            pieces=read,
            make=_zeros(size) if empty else self._maker(target, pieces, split, place),
            sizes=(size,),
            values=prod(whole),
        )
        return TensorEdit(
            source=first.source,
            target=target,
            info=TensorInfo(self.dtype, tuple(whole), size),
            ids=ids,
            pad=first.pad if empty else 0,
            making=making,
        )

    def _maker(
        self, target: str, pieces: Mapping[str, Piece], split: Split | None, place: int
    ) -> Make:
        settings, dtype = self.settings, self.dtype

        def make(data: Sequence[Bytes]) -> Sequence[Bytes]:
            raws = {
                name: Raw(TensorInfo(piece.dtype, piece.shape, len(part)), part)
                for (name, piece), part in zip(pieces.items(), data, strict=True)
            }
            try:
                weight = plain_tensor(raws, settings)
                if weight is None:
                    raise self._unreadable(target)
                own = weight if split is None else split.cut(weight)[place]
            # RuntimeError: how torch says that shapes do not go together.
            except (RuntimeError, ValueError, LookupError, TypeError) as problem:
                raise CheckpointError(
                    f"{target}: what the checkpoint stores of it does not fit together "
                    f"({str(problem).splitlines()[0][:200]}). Download the checkpoint again."
                ) from problem
            return [plain_bytes(own, dtype)]

        return make

    def _whole(self, name: str) -> Piece:
        info = self.index.entries[name].info
        return Piece(name, info.dtype, info.shape, 0, info.nbytes)

    def _slab(self, name: str, expert: int, count: int) -> Piece:
        """What one expert has of a stack; a number for all experts stands for each."""
        info, rule = self.index.entries[name].info, self.layout.tensors.get(name)
        if rule is None or rule.axis != 0:
            return self._whole(name)
        share = info.nbytes // count
        shape = info.shape[1:] if rule.block == 1 else (rule.block, *info.shape[1:])
        return Piece(name, info.dtype, shape, expert * share, (expert + 1) * share)

    def _shape(self, stem: str, pieces: Mapping[str, Piece]) -> tuple[int, int]:
        infos = {
            name: TensorInfo(piece.dtype, piece.shape, piece.end - piece.start)
            for name, piece in pieces.items()
        }
        shape = plain_shape(infos, self.settings, lambda name: self._read(pieces[name]))
        if shape is None:
            raise self._unreadable(stem)
        return shape

    def _read(self, piece: Piece) -> bytes:
        entry = self.index.entries[piece.source]
        start = entry.start
        if not (self.index.path / entry.file).is_file():
            raise UnsupportedModelError(
                f"--requantize of {self.method} reads {piece.source!r} before it writes: leave "
                "--stream out."
            )
        return b"".join(
            chunks(self.index.path / entry.file, start + piece.start, start + piece.end)
        )

    def _unreadable(self, name: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"--requantize cannot read the numbers of {name!r} ({self.method}). Quantise the "
            "checkpoint that it was made from."
        )


def _zeros(size: int) -> Make:
    """What padding is."""
    return lambda data: [bytes(size)]

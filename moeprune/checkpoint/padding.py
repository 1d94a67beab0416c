"""Pad narrow layers to the count of the widest one, with experts that no token can choose.

A padded expert is zero and its router row too; its bias is so low that the router never picks it.
Exact where a bias decides: one that is added to the logits, or one that is added to scores which
do not depend on each other (sigmoid). A softmax over all experts would notice a zero row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np

from moeprune.checkpoint.copying import Copier
from moeprune.checkpoint.edits import TensorEdit, renumbered, row_runs
from moeprune.checkpoint.header import DTYPE_BITS, TensorEntry
from moeprune.core.layout import ExpertTensor, MoeLayout, TensorInfo
from moeprune.core.targets import PADDABLE
from moeprune.errors import UnsupportedModelError

BIAS = -1e9
_SELECTION_BIASES = frozenset(
    {"e_score_correction_bias", "expert_bias", "router_bias", "balancing_biases"}
)
# Formats whose expert of zero bytes is zero; others store sizes or offsets beside the weights.
_ZERO_FORMATS = frozenset({"mxfp4", "fp8"})
_ZEROS = bytes(1 << 20)


def check_paddable(layout: MoeLayout) -> None:
    """Check that padded experts change nothing in this model.

    Raises:
        UnsupportedModelError: they would; the message says why, one sentence.
    """
    if layout.num_groups > 1:
        raise UnsupportedModelError(
            f"--pad is not exact here: the router scores {layout.num_groups} groups of experts "
            "(n_group), and a padded expert is a member of one."
        )
    if layout.quant_method is not None and layout.quant_method not in _ZERO_FORMATS:
        raise UnsupportedModelError(
            f"--pad cannot write an empty expert in the stored format {layout.quant_method}."
        )
    if layout.model_type not in PADDABLE:
        raise UnsupportedModelError(
            f"--pad is not exact for {layout.model_type}: its router has no bias that could keep a "
            "token from a padded expert, or normalises over all experts."
        )
    biases: dict[int, set[str]] = {row: set() for row in range(len(layout.layer_ids))}
    for name, rule in layout.tensors.items():
        if rule.role == "router":
            biases[rule.row].add(_bias_kind(name))
    for row, kinds in biases.items():
        if "logits" in kinds or ("scores" in kinds and layout.gating != "softmax"):
            continue
        raise UnsupportedModelError(
            f"--pad is not exact here: the router of layer {layout.layer_ids[row]} has no bias on "
            "independent scores, so a token could choose or notice a padded expert."
        )


def padded_edits(
    edits: Sequence[TensorEdit],
    tensors: Mapping[str, TensorInfo],
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
) -> list[TensorEdit]:
    """The edits of an export whose layers all have the count of the widest one.

    Args:
        edits: of the export without padding.
        tensors: the source's tensors.
        layout: of the source; it passes :func:`check_paddable`.
        keep: L sequences of the ids that stay.

    Raises:
        UnsupportedModelError: a bias is stored in a type that cannot hold a low number.
    """
    count = max(map(len, keep))
    padded: list[TensorEdit] = []
    for edit in edits:
        rule = layout.tensors.get(edit.source)
        missing = count - len(keep[rule.row]) if rule else 0
        if rule is None or not missing:
            padded.append(edit)
        elif rule.axis is None:
            padded.append(edit)
            if rule.expert == keep[rule.row][-1]:
                padded += _empty(edit, rule, len(keep[rule.row]), count)
        else:
            padded.append(_widened(edit, tensors[edit.source], rule, missing))
    return padded


def write_padded(copier: Copier, source: BinaryIO, entry: TensorEntry, edit: TensorEdit) -> None:
    """Append a padded tensor: in each row its kept experts, the padding, then the extra rows."""
    for piece in pieces_of(edit, entry.info):
        if isinstance(piece, tuple):
            copier.copy(source, entry.start + piece[0], entry.start + piece[1])
            continue
        copier.write_new(piece)


def pad_value(dtype: str, *, fill: float) -> bytes:
    """The bytes of one value of the padding.

    Raises:
        UnsupportedModelError: the type cannot hold it.
    """
    if not fill:
        return bytes(max(1, DTYPE_BITS[dtype] // 8))
    if dtype == "BF16":
        return np.array(fill, "<f4").tobytes()[2:]
    if dtype == "F16":
        return np.array(np.finfo(np.float16).min, "<f2").tobytes()
    if dtype in ("F32", "F64"):
        return np.array(fill, "<f4" if dtype == "F32" else "<f8").tobytes()
    raise UnsupportedModelError(
        f"--pad needs router biases that can hold {fill:g}; this model stores them as {dtype}."
    )


def pad_fill(name: str) -> float:
    """What a padded position of a router tensor holds."""
    return BIAS if _bias_kind(name) else 0.0


def _bias_kind(name: str) -> str:
    """What a router tensor is added to: ``"logits"``, ``"scores"``, or ``""``: it is no bias."""
    last = name.rpartition(".")[2]
    if last in _SELECTION_BIASES:
        return "scores"
    return "logits" if last == "bias" else ""


def _empty(edit: TensorEdit, rule: ExpertTensor, first: int, count: int) -> Iterator[TensorEdit]:
    """The same tensor of the padded experts, all zeros."""
    length = edit.info.shape[0] if edit.info.shape else 1
    for number in range(first, count):
        assert rule.expert is not None
        target = renumbered(edit.source, rule.expert, number)
        yield TensorEdit(
            source=edit.source, target=target, info=edit.info, ids=(), axis=0, pad=length
        )


def _widened(edit: TensorEdit, source: TensorInfo, rule: ExpertTensor, missing: int) -> TensorEdit:
    assert edit.ids is not None
    fill = pad_fill(edit.source) if rule.role == "router" else 0.0
    pad_value(source.dtype, fill=fill)  # raises where the type cannot hold it
    pad = missing * edit.block
    shape = list(edit.info.shape)
    shape[edit.axis] += pad
    bits = DTYPE_BITS[source.dtype]
    if pad * math.prod(shape[edit.axis + 1 :]) * bits % 8:
        raise UnsupportedModelError(
            f"tensor {edit.source!r} packs {source.dtype} values so that padded experts do not end "
            "on whole bytes. Convert the checkpoint to a wider type."
        )
    info = TensorInfo(source.dtype, tuple(shape), math.prod(shape) * bits // 8)
    return replace(edit, info=info, pad=pad, fill=fill)


def pieces_of(
    edit: TensorEdit, source: TensorInfo
) -> Iterator[tuple[int, int] | bytes | memoryview]:
    """(start, end) of the source tensor's bytes, or bytes to write, in the order of the export."""
    if not edit.ids:
        yield from _zeros(edit.info.nbytes)
        return
    kept = row_runs(replace(edit, extra=0), source)
    step = math.prod(source.shape[edit.axis + 1 :]) * DTYPE_BITS[source.dtype]  # bits
    size = edit.pad * step // 8
    value = pad_value(source.dtype, fill=edit.fill)
    for row in range(kept.rows):
        base = row * kept.row_bytes
        for start, end in kept.runs:
            yield base + start, base + end
        yield from (value * (size // len(value)),) if edit.fill else _zeros(size)
        if edit.extra:
            yield base + kept.row_bytes - edit.extra * step // 8, base + kept.row_bytes


def _zeros(size: int) -> Iterator[memoryview]:
    view = memoryview(_ZEROS)
    while size:
        yield view[: min(size, len(view))]
        size -= min(size, len(view))

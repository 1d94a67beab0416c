"""From a plan to the list of everything that happens to tensors; pure, so it can be checked first.

E routed experts of a layer. On its expert axis a tensor holds E blocks and then ``extra`` rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moeprune.checkpoint.header import DTYPE_BITS
from moeprune.checkpoint.making import Making
from moeprune.core.layout import ExpertTensor, MoeLayout, TensorInfo
from moeprune.errors import CheckpointError, PlanError, UnsupportedModelError

_EXPERT_NUMBER = re.compile(r"\bexperts\.(\d+)(?=\.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEdit:
    """What becomes of one tensor that stays; a tensor without an edit leaves.

    Attributes:
        source: its name in the source checkpoint.
        target: its name in the export.
        info: type, shape and size in the export.
        ids: kept experts on ``axis``, ascending, or None: copied whole.
        axis: where the experts lie.
        block: consecutive positions that one expert owns.
        extra: positions after the last expert that stay.
        pad: positions added after the last kept expert, see :mod:`moeprune.checkpoint.padding`.
        fill: the value that they hold.
        table: the kept experts of a table whose values are ids of experts, or None.
        factor: what every value that stays is multiplied by, see
            :mod:`moeprune.checkpoint.scaling`.
        making: what computes it, or None: its bytes are the source's. The edits of one making
            follow one another in the order of what it gives; ``part`` 0 is the first.
        part: which of the making's tensors it is.
    """

    source: str
    target: str
    info: TensorInfo
    ids: tuple[int, ...] | None = None
    axis: int = 0
    block: int = 1
    extra: int = 0
    pad: int = 0
    fill: float = 0.0
    table: tuple[int, ...] | None = None
    factor: float = 1.0
    making: Making | None = None
    part: int = 0

    @property
    def whole(self) -> bool:
        """Whether the tensor's bytes are copied as they are."""
        changed = self.ids is not None or self.table is not None or self.making is not None
        return not changed and self.factor == 1.0


@dataclass(frozen=True, slots=True)
class RowRuns:
    """The kept bytes of a tensor: the same runs in each of its rows.

    Attributes:
        rows: how often the pattern repeats (product of the dimensions before the expert axis).
        row_bytes: length of a row in the source.
        runs: (start, end) in a row, ascending, adjacent ones merged.
    """

    rows: int
    row_bytes: int
    runs: tuple[tuple[int, int], ...]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(start, end) counted from the tensor's first byte."""
        for row in range(self.rows):
            for start, end in self.runs:
                yield row * self.row_bytes + start, row * self.row_bytes + end


def edits_for(
    tensors: Mapping[str, TensorInfo], layout: MoeLayout, keep: Mapping[int, tuple[int, ...]]
) -> list[TensorEdit]:
    """Every tensor that stays: copied, renumbered or sliced; in the order of ``tensors``.

    Args:
        tensors: the source's tensors.
        layout: how they depend on the experts.
        keep: row of the layout -> kept expert ids, ascending; every row must be there.

    Raises:
        PlanError: ids that are not those of the layer's experts.
        CheckpointError: a tensor's shape does not fit the layout, or two would get one name.
        UnsupportedModelError: a packed type whose experts do not start on whole bytes, or a name
            from which the expert's number cannot be told.
    """
    _check_keep(layout, keep)
    for name in layout.tensors:
        if name not in tensors:
            raise CheckpointError(f"the checkpoint has no tensor {name!r}. Download it again.")
    edits: list[TensorEdit] = []
    sources: dict[str, str] = {}
    for name, info in tensors.items():
        edit = _edit(name, info, layout, keep)
        if edit is None:
            continue
        if edit.target in sources:
            raise CheckpointError(
                f"tensors {sources[edit.target]!r} and {name!r} would both become "
                f"{edit.target!r}. Number the experts of the checkpoint without repeats."
            )
        sources[edit.target] = name
        edits.append(edit)
    return edits


def _check_keep(layout: MoeLayout, keep: Mapping[int, tuple[int, ...]]) -> None:
    for row, (layer, count) in enumerate(zip(layout.layer_ids, layout.num_experts, strict=True)):
        ids = keep.get(row, ())
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= count:
            raise PlanError(
                f"layer {layer} has experts 0 to {count - 1}, the plan keeps {list(ids)!r}; "
                "it must name each kept one once, in ascending order."
            )
    if len(keep) != len(layout.layer_ids):
        raise PlanError(f"the plan has {len(keep)} layers, the model {len(layout.layer_ids)}.")


def _edit(
    name: str, info: TensorInfo, layout: MoeLayout, keep: Mapping[int, tuple[int, ...]]
) -> TensorEdit | None:
    rule = layout.tensors.get(name)
    if rule is None:
        return TensorEdit(source=name, target=name, info=info)
    ids, num_experts = keep[rule.row], layout.num_experts[rule.row]
    if rule.axis is None:
        if rule.role == "table":
            return TensorEdit(source=name, target=name, info=info, table=ids)
        old, number = _numbers(rule, ids, num_experts)
        if number is None:
            return None
        return TensorEdit(source=name, target=renumbered(name, old, number), info=info)
    length = num_experts * rule.block + rule.extra
    if rule.axis >= len(info.shape) or info.shape[rule.axis] != length:
        raise CheckpointError(
            f"tensor {name!r} has shape {list(info.shape)}; {num_experts} experts need {length} "
            f"on axis {rule.axis}. Check that config.json belongs to these weights."
        )
    if len(ids) == num_experts:
        return TensorEdit(source=name, target=name, info=info)
    kept = len(ids) * rule.block + rule.extra
    shape = (*info.shape[: rule.axis], kept, *info.shape[rule.axis + 1 :])
    edit = TensorEdit(
        source=name,
        target=name,
        info=TensorInfo(info.dtype, shape, math.prod(shape) * DTYPE_BITS[info.dtype] // 8),
        ids=ids,
        axis=rule.axis,
        block=rule.block,
        extra=rule.extra,
    )
    row_runs(edit, info)  # raises where the slice is not made of whole bytes
    return edit


def _numbers(rule: ExpertTensor, ids: tuple[int, ...], num_experts: int) -> tuple[int, int | None]:
    """The number in the name of an expert's tensor before and after; None: it leaves."""
    assert rule.expert is not None
    old = rule.expert + rule.shift * num_experts
    if rule.expert >= num_experts:
        return old, len(ids) + rule.expert - num_experts
    if rule.expert not in ids:
        return old, None
    return old, ids.index(rule.expert) + rule.shift * len(ids)


def renumbered(name: str, old: int, number: int) -> str:
    """The name of a tensor whose expert gets another number.

    Raises:
        UnsupportedModelError: it cannot be told which number of the name that is.
    """
    found = [match for match in _EXPERT_NUMBER.finditer(name) if match[1] == str(old)]
    if len(found) != 1:
        raise UnsupportedModelError(
            f"tensor {name!r}: cannot tell which number in its name is expert {old}."
        )
    start, end = found[0].span(1)
    return f"{name[:start]}{number}{name[end:]}"


def row_runs(edit: TensorEdit, source: TensorInfo) -> RowRuns:
    """Which bytes of the source tensor an edit keeps.

    Args:
        edit: the edit.
        source: the tensor as the source stores it.

    Raises:
        UnsupportedModelError: a packed type (less than a byte a value) whose kept slices do not
            start and end on whole bytes.
    """
    if edit.ids is None:
        return RowRuns(1, source.nbytes, ((0, source.nbytes),) if source.nbytes else ())
    length = source.shape[edit.axis]
    rows = math.prod(source.shape[: edit.axis])
    step = math.prod(source.shape[edit.axis + 1 :]) * DTYPE_BITS[source.dtype]  # bits
    positions = [(i * edit.block, (i + 1) * edit.block) for i in edit.ids]
    positions += [(length - edit.extra, length)] * bool(edit.extra)
    runs: list[tuple[int, int]] = []
    for start, end in positions:
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
    bounds = [position * step for run in runs for position in run]
    if any(bound % 8 for bound in bounds) or (rows > 1 and length * step % 8):
        raise UnsupportedModelError(
            f"tensor {edit.source!r} packs {source.dtype} values so that the kept experts do not "
            "start on whole bytes. Convert the checkpoint to a wider type."
        )
    byte_runs = tuple((start * step // 8, end * step // 8) for start, end in runs)
    return RowRuns(rows, length * step // 8, byte_runs if step else ())

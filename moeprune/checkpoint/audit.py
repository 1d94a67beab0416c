"""Check an exported folder against its source, tensor by tensor and byte by byte.

Written apart from the code that makes the edits: it derives from the layout and the kept ids what
each stored tensor must hold, so that a mistake there does not hide itself here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from moeprune.checkpoint.audit_padding import PADDING, empty_problems, empty_row
from moeprune.checkpoint.audit_reader import Shards
from moeprune.checkpoint.index import CheckpointIndex, TensorEntry
from moeprune.checkpoint.tables import table_problem
from moeprune.core.layout import ExpertTensor, MoeLayout
from moeprune.core.progress import OnProgress, Progress, ignore

_CHUNK = 8 << 20


class _Absent:
    """A key that a config does not have; null is a value of its own."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
_EXPERT_NUMBER = re.compile(r"(?<=\bexperts\.)(\d+)(?=\.)")


@dataclass(slots=True)
class Audit:
    """What was compared, and what did not hold.

    Attributes:
        tensors: tensors of the export that equal what they must be.
        dropped: tensors of the source that left with their expert.
        bytes_compared: bytes of the export that were compared with the source.
        problems: one line each; empty means the export is what the plan says.
    """

    tensors: int = 0
    dropped: int = 0
    bytes_compared: int = 0
    problems: list[str] = field(default_factory=list)


def audit(
    source: CheckpointIndex,
    export: CheckpointIndex,
    *,
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
    padded: bool = False,
    on_progress: OnProgress = ignore,
) -> Audit:
    """Compare every tensor of ``export`` with what ``source`` holds for it.

    Args:
        source: the checkpoint that was pruned.
        export: the checkpoint that came out.
        layout: of the source.
        keep: L sequences of the original ids of the experts that stay, ascending.
        padded: whether every layer is filled up to the widest one: experts and router rows of
            zeros, biases of −1e9.
        on_progress: told of the bytes compared.

    Returns:
        Counts and problems; nothing is raised for a difference.
    """
    with ExitStack() as stack:
        return _audit(
            source,
            export,
            (Shards(source, stack), Shards(export, stack)),
            layout=layout,
            keep=keep,
            padded=padded,
            on_progress=on_progress,
        )


def _audit(
    source: CheckpointIndex,
    export: CheckpointIndex,
    shards: tuple[Shards, Shards],
    *,
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
    padded: bool,
    on_progress: OnProgress,
) -> Audit:
    result = Audit()
    expected: set[str] = set()
    total = export.total_bytes
    width = max(map(len, keep)) if padded else 0
    for name, entry in source.entries.items():
        rule = layout.tensors.get(name)
        ids = keep[rule.row] if rule else ()
        experts = layout.num_experts[rule.row] if rule else 0
        target = _target_name(name, rule, ids, experts)
        if target is None:
            result.dropped += 1
            continue
        expected.add(target)
        other = export.entries.get(target)
        if other is None:
            result.problems.append(f"{target} is missing (it is {name} of the source)")
            continue
        problem = _compare(*shards, name, entry, other, rule, ids, pads=max(0, width - len(ids)))
        if problem:
            result.problems.append(f"{target}: {problem}")
        else:
            result.tensors += 1
        result.bytes_compared += other.info.nbytes
        on_progress(Progress("verify bytes", result.bytes_compared, total, "bytes"))
        if rule is not None and rule.expert is not None and rule.expert == ids[-1]:
            for number in range(len(ids), width):
                target = _numbered(name, rule.expert, number)
                expected.add(target)
                result.problems += empty_problems(shards[1], export, target, entry.info)
    for name in export.entries:
        if name not in expected:
            result.problems.append(f"{name} is in the export but not due from the source")
    return result


def _target_name(
    name: str, rule: ExpertTensor | None, ids: Sequence[int], experts: int
) -> str | None:
    """The name that a tensor has in the export; None: it leaves."""
    if rule is None or rule.expert is None:
        return name
    # Everything that stays, in order: each set's kept experts, then the idle ones.
    behind = range(experts, max(experts, rule.expert + 1))
    staying = [*ids, *behind] if not rule.shift else [None] * (rule.shift * len(ids)) + list(ids)
    if rule.expert not in staying:
        return None
    return _numbered(name, rule.expert + rule.shift * experts, staying.index(rule.expert))


def _numbered(name: str, old: int, new: int) -> str:
    return _EXPERT_NUMBER.sub(
        lambda match: str(new) if match[1] == str(old) else match[1], name, count=1
    )


def _compare(
    mine: Shards,
    theirs: Shards,
    name: str,
    entry: TensorEntry,
    other: TensorEntry,
    rule: ExpertTensor | None,
    ids: Sequence[int],
    *,
    pads: int,
) -> str:
    if entry.info.dtype != other.info.dtype:
        return f"is {other.info.dtype}, the source has {entry.info.dtype}"
    shape = list(entry.info.shape)
    if rule is not None and rule.role == "table":
        return table_problem(
            mine.read(entry.file, entry.start, entry.info.nbytes),
            theirs.read(other.file, other.start, other.info.nbytes),
            entry.info,
            other.info,
            ids,
        )
    ranges: Iterator[tuple[int, int] | None] = iter([(entry.start, entry.end)])
    empty = b""
    if rule is not None and rule.axis is not None:
        length = shape[rule.axis]
        kept = [position for e in ids for position in range(e * rule.block, (e + 1) * rule.block)]
        kept += [PADDING] * (pads * rule.block)
        kept += range(length - rule.extra, length)
        empty = empty_row(name, entry, rule)
        ranges = _row_ranges(entry, axis=rule.axis, kept=kept)
        shape[rule.axis] = len(kept)
    if tuple(shape) != other.info.shape:
        return f"has shape {list(other.info.shape)}, expected {shape}"
    at = other.start
    for found in ranges:
        if found is None:
            if theirs.read(other.file, at, len(empty)) != empty:
                return f"is not padding where it must be (byte {at - other.start})"
            at += len(empty)
            continue
        start, end = found
        while start < end:
            size = min(end - start, _CHUNK)
            if mine.read(entry.file, start, size) != theirs.read(other.file, at, size):
                return f"bytes differ from the source's (from byte {at - other.start} on)"
            start, at = start + size, at + size
    return "" if at == other.end else "holds more bytes than expected"


def _row_ranges(
    entry: TensorEntry, *, axis: int, kept: Sequence[int]
) -> Iterator[tuple[int, int] | None]:
    """Byte ranges of the kept positions on ``axis``, in the order of the sliced tensor.

    None stands for a position that the source does not have.
    """
    shape = entry.info.shape
    if not entry.info.nbytes:
        return
    outer = math.prod(shape[:axis])
    step = entry.info.nbytes // outer
    row = step // shape[axis]
    for index in range(outer):
        base = entry.start + index * step
        for position in kept:
            here = base + position * row
            yield None if position == PADDING else (here, here + row)


def config_differences(
    source: Mapping[str, object], export: Mapping[str, object], *, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object, object]]:
    """Every key path whose value differs between two configs, with both values, or ``ABSENT``.

    null is not absent: where a key is missing, transformers takes the default of the family.
    """
    for key in sorted(set(source) | set(export)):
        mine, theirs = source.get(key, ABSENT), export.get(key, ABSENT)
        here = (*path, key)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            yield from config_differences(mine, theirs, path=here)
        elif not same_value(mine, theirs):
            yield here, mine, theirs


def same_value(mine: object, theirs: object) -> bool:
    """Whether two values of a config are one, or both ``ABSENT``.

    As texts: True is not 1, 1.0 is not 1, and NaN is the NaN of the source.
    """
    if mine is ABSENT or theirs is ABSENT:
        return mine is theirs
    return json.dumps(mine, sort_keys=True) == json.dumps(theirs, sort_keys=True)

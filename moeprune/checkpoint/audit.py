"""Check an exported folder against its source, tensor by tensor and byte by byte.

Written apart from the code that makes the edits: it derives from the layout and the kept ids what
each stored tensor must hold, so that a mistake there does not hide itself here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from moeprune.checkpoint.audit_names import numbered, target_name
from moeprune.checkpoint.audit_padding import Reads, empty_problems
from moeprune.checkpoint.audit_reader import Shards
from moeprune.checkpoint.audit_tensor import tensor_problem
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.sources import PassingFiles
from moeprune.core.layout import MoeLayout
from moeprune.core.progress import OnProgress, Progress, ignore


class _Absent:
    """A key that a config does not have; null is a value of its own."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


class Computed(Protocol):
    """Tensors of an export that are not bytes of the source, and what they must be."""

    @property
    def targets(self) -> Collection[str]:
        """Their names, of those that the export must have."""

    def problems(self, mine: Reads, theirs: Reads) -> Iterator[str]:
        """What is wrong with them, one line each; every one of them is looked at.

        Args:
            mine: the source.
            theirs: the export.
        """


@dataclass(slots=True)
class Audit:
    """What was compared, and what did not hold.

    Attributes:
        tensors: tensors of the export that equal what they must be.
        multiplied: those of them that are the source's times a factor.
        computed: those of them that were computed from the source's.
        dropped: tensors of the source that left with their expert.
        bytes_compared: bytes of the export that were compared with the source.
        problems: one line each; empty means the export is what the plan says.
    """

    tensors: int = 0
    multiplied: int = 0
    computed: int = 0
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
    factors: Mapping[str, float] | None = None,
    computed: Mapping[str, Sequence[Computed]] | None = None,
    passing: PassingFiles | None = None,
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
        factors: tensor of the source -> what its values are multiplied by; others are the same.
        computed: tensor of the source -> what was made of it, instead of a tensor like it; all that
            was made of several is with the first of them.
        passing: where the source's weight files come from, if they are not all in its folder; at
            most one of them is here at a time, and those that nothing is compared with never are.
        on_progress: told of the bytes compared (and fetched).

    Returns:
        Counts and problems; nothing is raised for a difference.
    """
    result = Audit()
    due = _due(source, layout, keep)
    result.dropped = len(source.entries) - len(due)
    sizes = passing.sizes if passing else {}
    needed = {source.entries[name].file for name in due}
    total = export.total_bytes + sum(size for file, size in sizes.items() if file in needed)
    fetched = 0

    def report(size: int = 0) -> None:
        nonlocal fetched
        fetched += size
        on_progress(Progress("verify bytes", result.bytes_compared + fetched, total, "bytes"))

    expected: set[str] = set()
    width = max(map(len, keep)) if padded else 0
    with ExitStack() as stack:
        mine, theirs = Shards(source, stack, passing, report), Shards(export, stack)
        for name, target in due.items():
            if computed is not None and name in computed:
                for one in computed[name]:
                    _compare(one, mine, theirs, export, result)
                    expected.update(one.targets)
                    report()
                continue
            entry, rule = source.entries[name], layout.tensors.get(name)
            ids = keep[rule.row] if rule else ()
            expected.add(target)
            other = export.entries.get(target)
            if other is None:
                result.problems.append(f"{target} is missing (it is {name} of the source)")
                continue
            pads = max(0, width - len(ids))
            factor = (factors or {}).get(name, 1.0)
            problem = tensor_problem(
                mine, theirs, name, entry, other, rule, ids, pads=pads, factor=factor
            )
            if problem:
                result.problems.append(f"{target}: {problem}")
            else:
                result.tensors += 1
                result.multiplied += factor != 1.0
            result.bytes_compared += other.info.nbytes
            report()
            if rule is not None and rule.expert is not None and rule.expert == ids[-1]:
                for number in range(len(ids), width):
                    target = numbered(name, rule.expert, number)
                    expected.add(target)
                    result.problems += empty_problems(theirs, export, target, entry.info)
    for name in export.entries:
        if name not in expected:
            result.problems.append(f"{name} is in the export but not due from the source")
    return result


def _compare(
    one: Computed, mine: Reads, theirs: Reads, export: CheckpointIndex, result: Audit
) -> None:
    found = list(one.problems(mine, theirs))
    result.problems += found
    there = [export.entries[name] for name in one.targets if name in export.entries]
    result.bytes_compared += sum(entry.info.nbytes for entry in there)
    if not found:
        result.tensors += len(there)
        result.computed += len(there)


def _due(
    source: CheckpointIndex, layout: MoeLayout, keep: Sequence[Sequence[int]]
) -> dict[str, str]:
    """Every tensor of the source that stays, in the order of the disk -> its name in the export."""
    names = {}
    for name in source.entries:
        rule = layout.tensors.get(name)
        ids = keep[rule.row] if rule else ()
        target = target_name(name, rule, ids, layout.num_experts[rule.row] if rule else 0)
        if target is not None:
            names[name] = target
    return names


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

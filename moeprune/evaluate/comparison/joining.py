"""The same questions of two runs, side by side; what is not the same is refused.

Two answers belong together by (task, id, seed). That is worth nothing if the questions were asked
otherwise: protocol, tokens of the input, right answer and choice of questions are looked at first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeprune.core.run import Run
from moeprune.core.sample import Key, Sample
from moeprune.errors import MismatchError, UsageError
from moeprune.evaluate.comparison.protocols import check_protocol
from moeprune.plugins import known

Pair = tuple[Sample, Sample]


@dataclass(frozen=True, slots=True)
class Joined:
    """Answers of a base and a variant to the same questions.

    Attributes:
        pairs: task -> (base's, variant's) answers, in the base's order.
        only_base: task -> answers of which the variant has none.
        only_variant: the other way round.
    """

    pairs: Mapping[str, tuple[Pair, ...]]
    only_base: Mapping[str, int]
    only_variant: Mapping[str, int]


def chosen_tasks(base: Run, variants: Sequence[Run], tasks: Sequence[str] | None) -> list[str]:
    """The tasks to compare, in the base's order: those asked for, or all.

    Raises:
        UsageError: one asked for is not in the base, or not in a variant.
        MismatchError: nothing is shared.
    """
    if tasks is None:
        # One that no variant has is told as missing, and fails a check for regressions.
        if not any(name in run.tasks for run in variants for name in base.tasks):
            have = ", ".join(sorted({name for run in variants for name in run.tasks})) or "none"
            raise MismatchError(
                f"no task of {base.name} ({', '.join(base.tasks) or 'none'}) was answered by a "
                f"variant ({have}). Evaluate them on the same tasks."
            )
        return list(base.tasks)
    for run in (base, *variants):
        for name in tasks:
            known(name, run.tasks, kind=f"task of {run.name}")
    if not tasks:
        raise UsageError("no task was named; name one, or leave the option out.")
    return [name for name in base.tasks if name in tasks]


def join(base: Run, variant: Run, tasks: Sequence[str]) -> Joined:
    """Put the answers of two runs side by side.

    Raises:
        MismatchError: they were not asked the same: another protocol, another input of a question,
            or another right answer; or no question of a task is shared.
    """
    theirs = variant.by_key
    pairs: dict[str, tuple[Pair, ...]] = {}
    only_base: dict[str, int] = {}
    only_variant: dict[str, int] = {}
    for task in tasks:
        mine = base.of_task(task)
        if task not in variant.tasks:
            only_base[task] = len(mine)
            continue
        check_protocol(base, variant, task)
        pairs[task] = tuple((one, theirs[one.key]) for one in mine if one.key in theirs)
        if not pairs[task]:
            raise MismatchError(
                f"task {task}: {base.name} and {variant.name} share no question"
                f"{_example(mine, variant.of_task(task))}. Evaluate both on the same ones."
            )
        _check_pairs(base, variant, task, pairs[task])
        only_base[task] = len(mine) - len(pairs[task])
        only_variant[task] = len(variant.of_task(task)) - len(pairs[task])
    return Joined(pairs, only_base, only_variant)


def _check_pairs(base: Run, variant: Run, task: str, pairs: Sequence[Pair]) -> None:
    for what, field in (("input", "input"), ("right answer", "answer"), ("domain", "domain")):
        different = [
            one
            for one, other in pairs
            if getattr(one, field) and getattr(other, field)
            if getattr(one, field) != getattr(other, field)
        ]
        if different:
            raise MismatchError(
                f"task {task}: {len(different)} of {len(pairs)} questions had another {what} in "
                f"{variant.name} than in {base.name}, first {different[0].id!r}. Same tokenizer, "
                "chat template and shots are needed: evaluate both alike."
            )


def _example(mine: Sequence[Sample], theirs: Sequence[Sample]) -> str:
    if not mine or not theirs:
        return f" ({len(mine)} and {len(theirs)} answers)"
    return f" (first {_key(mine[0].key)} and {_key(theirs[0].key)})"


def _key(key: Key) -> str:
    return f"{key[1]!r} seed {key[2]}" if key[2] else repr(key[1])

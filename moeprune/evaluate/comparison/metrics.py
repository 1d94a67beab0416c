"""What is compared in each task: right or wrong, or a metric that was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeprune.core.run import Run
from moeprune.core.summary import LOOP
from moeprune.errors import UsageError
from moeprune.plugins import known


def chosen_metrics(
    runs: Sequence[Run], tasks: Sequence[str], asked: Sequence[str]
) -> tuple[dict[str, str | None], tuple[str, ...]]:
    """Task -> metric, None for right or wrong; and a line on each task that lacks what was asked.

    A task without right and wrong whose header names a metric is compared by that.

    Args:
        runs: all of them; a metric counts where the base, the first, has it.
        tasks: that are compared.
        asked: ``NAME`` or ``TASK=NAME``; the more special one wins.

    Raises:
        UsageError: no task, or not the named one, has the metric, or less of it is better.
    """
    base = runs[0]
    have = {name: _metrics(base, name) for name in tasks}
    found: dict[str, str | None] = {name: _default(base, name) for name in tasks}
    left: list[str] = []
    for text in sorted(asked, key=lambda text: _task_of(text, tasks) is not None):
        task = _task_of(text, tasks)
        name = text if task is None else text[len(task) + 1 :]
        held = [one for one in tasks if name in have[one]] if task is None else [task]
        choices = sorted({metric for one in tasks for metric in have[one]})
        known(name, choices if task is None else have[task], kind=f"metric of {task or base.name}")
        for one in held:
            if lower_is_better(base.tasks[one], name):
                raise UsageError(
                    f"task {one}: of {name} lower is better, and a comparison takes what is lower "
                    "for worse. Name a metric of which more is better."
                )
        found |= dict.fromkeys(held, name)
        lacking = [one for one in tasks if have[one] and name not in have[one]]
        if task is None:
            left += [f"task {one} has no {name}; it is compared by what it has." for one in lacking]
    return found, tuple(left)


def _task_of(text: str, tasks: Sequence[str]) -> str | None:
    """The task that ``TASK=NAME`` begins with: the longest that fits, since names may hold =."""
    fitting = [name for name in tasks if text.startswith(f"{name}=")]
    if not fitting and "=" in text:
        raise UsageError(
            f"--metric {text}: no task {text.partition('=')[0]!r} is compared; there are "
            f"{', '.join(tasks)}."
        )
    return max(fitting, key=len, default=None)


def _metrics(run: Run, task: str) -> list[str]:
    return sorted({name for sample in run.of_task(task) for name in sample.metrics})


def _default(run: Run, task: str) -> str | None:
    """``correct`` where any answer has it; else what the header names, or acc, or the only one."""
    if any(sample.correct is not None for sample in run.of_task(task)):
        return None
    have = [name for name in _metrics(run, task) if not lower_is_better(run.tasks[task], name)]
    named = run.tasks[task].get("metric")
    for name in (named, "acc", *(have if len(have) == 1 else ())):
        if name in have:
            return str(name)
    return None


def lower_is_better(entry: Mapping[str, Any], metric: str) -> bool:
    """Whether a task's header says so of a metric, as lm-eval's do; loops are ours."""
    protocol = entry.get("protocol")
    parts = protocol.get("parts") if isinstance(protocol, Mapping) else None
    told = [entry, *(parts.values() if isinstance(parts, Mapping) else ())]
    name = metric.partition(",")[0]
    for one in told:
        known_of = one.get("higher_is_better") if isinstance(one, Mapping) else None
        if isinstance(known_of, Mapping) and known_of.get(name) is False:
            return True
    return metric == LOOP

"""What is compared in each task: right or wrong, or a metric that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from moeprune.core.run import Run
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
        UsageError: no task, or not the named one, has the metric.
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
        found |= dict.fromkeys(held, name)
        lacking = [one for one in tasks if name not in have[one]] if task is None else []
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
    """``correct`` where any answer has it; else the metric that the header names, if there is."""
    if any(sample.correct is not None for sample in run.of_task(task)):
        return None
    named = run.tasks[task].get("metric")
    return named if isinstance(named, str) and named in _metrics(run, task) else None

"""What several guards read off answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeprune.core.guard import Answered
from moeprune.core.run import Run
from moeprune.core.sample import Sample

_SCORES = ("logprobs", "loglik", "scores")  # one number a choice, by the kind of task


def by_task(run: Run) -> Iterator[tuple[str, tuple[Sample, ...]]]:
    """Each task of a run, and its answers that are right or wrong."""
    for task in run.tasks:
        samples = tuple(sample for sample in run.of_task(task) if sample.correct is not None)
        if samples:
            yield task, samples


def choices_of(sample: Sample) -> int | None:
    """Between how many choices the answer was chosen; None where it was written."""
    for name in _SCORES:
        scores = sample.details.get(name)
        if isinstance(scores, Sequence) and len(scores) > 1:
            return len(scores)
    number = sample.details.get("choices")
    return number if isinstance(number, int) and number > 1 else None


def right_of(samples: Sequence[Sample]) -> int:
    """How many are right."""
    return sum(sample.correct is True for sample in samples)


def kind_of(run: Run, task: str) -> str:
    """The kind of a task."""
    return str(run.tasks[task].get("kind", ""))


def expected_of(answered: Answered, task: str) -> float | None:
    """The accuracy that the unpruned model is known to reach, where it is stated."""
    stated = answered.setting.expected.get(task)
    own = answered.tasks.get(task)
    return own.protocol.expected if stated is None and own is not None else stated


def percent(share: float) -> str:
    """A share as tables show it."""
    return f"{share:.1%}"

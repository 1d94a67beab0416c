"""The unpruned model answers worse than it is known to (``expected``): a protocol to look at.

Lesson 5 of the paper: 53 % where 81.65 % is known is a problem of the protocol, not of the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from scipy.special import bdtr

from moeprune.core.guard import WARN, Answered, Finding
from moeprune.evaluate.guards._answers import by_task, expected_of, percent, right_of

_TAIL = 0.025  # one-sided, of a 95 % bound


def after(answered: Answered) -> Iterator[Finding]:
    """Tasks whose base is further below the stated accuracy than so few questions allow."""
    for task, samples in by_task(answered.base):
        expected = expected_of(answered, task)
        if expected is None:
            continue
        right, number = right_of(samples), len(samples)
        if bdtr(right, number, expected) >= _TAIL:
            continue
        yield Finding(
            name="below-expected",
            level=WARN,
            task=task,
            text=(
                f"task {task!r}: {answered.base.name} answers {percent(right / number)} of "
                f"{number} right, where {percent(expected)} is expected of it. Check the protocol "
                "(shots, chat template, budget, extractor) before any variant is compared."
            ),
        )

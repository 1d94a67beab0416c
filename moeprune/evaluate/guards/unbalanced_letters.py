"""A letter that is right as often as the others is hardly ever chosen.

Lesson 6 of the paper: under a chat template GLM scored 44 % on MMLU and almost never said C.
Whether the predictions are balanced is a signal that needs no known accuracy.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from scipy.special import chdtrc

from moeprune.core.guard import WARN, Answered, Finding
from moeprune.core.run import Run
from moeprune.core.sample import Sample
from moeprune.evaluate.guards._answers import by_task, percent

_LETTER = re.compile(r"[A-Z]")
_BY_CHANCE = 0.001  # of the χ² test of the chosen letters against the shares of the right ones
_SELDOM = 0.25  # chosen less often than this share of what is right
_APART = 0.2  # total variation: the share of the choices that would have to be others
_LEAST = 5.0  # times a letter must be expected to be judged


def after(answered: Answered) -> Iterator[Finding]:
    """Tasks of letters, of every run, whose chosen letters are not spread as the right ones."""
    for run in (answered.base, *answered.variants):
        for task, samples in by_task(run):
            text = _unbalanced(run, task, samples)
            if text:
                yield Finding(name="unbalanced-letters", level=WARN, task=task, text=text)


def _unbalanced(run: Run, task: str, samples: Sequence[Sample]) -> str:
    told = [sample for sample in samples if sample.prediction is not None]
    right = Counter(str(sample.answer) for sample in told)
    said = Counter(str(sample.prediction) for sample in told)
    if len(right) < 2 or not all(map(_LETTER.fullmatch, (*right, *said))):
        return ""
    expected = {letter: right[letter] for letter in sorted(right)}
    judged = {letter: number for letter, number in expected.items() if number >= _LEAST}
    if len(judged) < 2:
        return ""
    statistic = sum((said[letter] - number) ** 2 / number for letter, number in judged.items())
    if chdtrc(len(judged) - 1, statistic) >= _BY_CHANCE:
        return ""
    apart = sum(abs(said[letter] - right[letter]) for letter in {*right, *said}) / 2 / len(told)
    seldom = [letter for letter, number in judged.items() if said[letter] < _SELDOM * number]
    if not seldom and apart < _APART:
        return ""
    spread = ", ".join(
        f"{letter} {percent(said[letter] / len(told))} (right: {percent(number / len(told))})"
        for letter, number in expected.items()
    )
    return (
        f"task {task!r}: the letters that {run.name} chooses are not spread as the right ones: "
        f"{spread}. Check the prompt: how options are written, the chat template, the shots."
    )

"""The unpruned model answers as one that guesses: what is compared after that is noise.

The paper's first protocol scored a model at 53 % that reaches 81.65 % (lesson 5): an implausibly
low score is a problem of the protocol. Near chance, every variant is "as good" as the base.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from scipy.special import bdtrc

from moeprune.core.guard import WARN, Answered, Finding
from moeprune.evaluate.guards._answers import by_task, choices_of, percent, right_of

_TAIL = 0.025  # one-sided, of a 95 % bound


def after(answered: Answered) -> Iterator[Finding]:
    """Tasks of choices whose base does no better than chance, the mean of 1 / choices."""
    for task, judged in by_task(answered.base):
        chosen = {sample.key: choices_of(sample) for sample in judged}
        samples = [sample for sample in judged if chosen[sample.key]]
        known = [1 / number for number in chosen.values() if number]
        if not known:
            continue
        right, number, chance = right_of(samples), len(samples), fmean(known)
        # P(X >= right) of a guesser: the exact binomial at the mean chance, which is the wider.
        if right and bdtrc(right - 1, number, chance) < _TAIL:
            continue
        share = right / number
        close = "no better than" if share <= chance else "not clearly better than"
        yield Finding(
            name="near-chance",
            level=WARN,
            task=task,
            text=(
                f"task {task!r}: {answered.base.name} answers {right} of {number} right "
                f"({percent(share)}), {close} guessing ({percent(chance)}). Check "
                "the protocol (shots, chat template, kind) on the unpruned model, or ask more "
                "questions."
            ),
        )

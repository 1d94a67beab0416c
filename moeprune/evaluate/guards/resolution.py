"""Too few questions for the difference that is looked for.

Lesson 1 of the paper: the effects are 0.3 to 5 points, and 2,000 questions resolve one point if
they are paired (three if they are not).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from moeprune.core.guard import WARN, Answered, Finding, Setting
from moeprune.core.run import Run, Sample
from moeprune.evaluate.guards._answers import percent
from moeprune.evaluate.paired.resolution import paired_questions, resolution

ASSUMED = 0.05  # share of the questions that flip; the paper's models: 5 to 10 %
_UNJUDGED = ("perplexity", "degeneration")


def before(setting: Setting) -> Iterator[Finding]:
    """Tasks with too few questions, if as many answers flip as usual."""
    for task, number in _questions(setting).items():
        text = _short(task, number, setting.effect, ASSUMED, "if 5 % of the answers flip")
        if text:
            yield Finding(name="resolution", level=WARN, task=task, text=text)


def after(answered: Answered) -> Iterator[Finding]:
    """Tasks of which that is known only now, since more answers flip than usual."""
    setting = answered.setting
    known = {finding.task for finding in before(setting)}
    for variant in answered.variants:
        for task in answered.base.tasks:
            pairs = _pairs(answered.base, variant, task)
            if task in known or not pairs:
                continue
            flips = sum(first.correct != second.correct for first, second in pairs)
            share = flips / len(pairs)
            if share <= ASSUMED:
                continue
            where = f"as {percent(share)} of the answers of {variant.name} flip"
            text = _short(task, len(pairs), setting.effect, share, where)
            if text:
                yield Finding(name="resolution", level=WARN, task=task, text=text)


def _questions(setting: Setting) -> Mapping[str, int]:
    own = {t.name: len(t.questions) for t in setting.tasks if t.kind not in _UNJUDGED}
    for name, entry in setting.harness.items():
        parts = entry["protocol"]["parts"].values()
        judged = [part for part in parts if part["output_type"] != "loglikelihood_rolling"]
        if judged:
            own[name] = sum(part["questions"] for part in judged)
    return own


def _pairs(base: Run, variant: Run, task: str) -> list[tuple[Sample, Sample]]:
    answers = {sample.key: sample for sample in variant.of_task(task)}
    return [
        (sample, answers[sample.key])
        for sample in base.of_task(task)
        if sample.correct is not None and sample.key in answers
    ]


def _short(task: str, number: int, effect: float, flipping: float, where: str) -> str:
    found = resolution(number, discordant=flipping).paired
    if found is not None and found <= effect:
        return ""
    what = (
        f"resolve differences of {100 * found:.2f} points or more, {where}"
        if found is not None
        else "resolve no difference at all"
    )
    needed = paired_questions(effect, discordant=max(flipping, effect), power=0.5)
    looked = f"{100 * effect:g} point{'s are' if effect > 0.01 else ' is'} looked for"
    return (
        f"task {task!r}: {number} question{'s' * (number != 1)} {what}; {looked}, which takes "
        f"{needed:,}. Ask more, or look for more (--effect)."
    )

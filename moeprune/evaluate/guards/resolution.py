"""Too few questions for the difference that is looked for.

Lesson 1 of the paper: the effects are 0.3 to 5 points, and 2,000 questions resolve one point if
they are paired (three if they are not). Before, a usual share of flips is assumed; once variants
have answered, theirs is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from moeprune.core.guard import WARN, Answered, Finding, Setting
from moeprune.core.run import Run
from moeprune.evaluate.guards._answers import kind_of, percent
from moeprune.evaluate.paired.resolution import paired_questions, resolution

ASSUMED = 0.05  # share of the questions that flip; the paper's models: 5 to 10 %
_UNJUDGED = ("perplexity", "degeneration")

Short = tuple[int, float | None, int]
"""Questions of a task, the smallest difference that they resolve, and how many resolve enough."""


def before(setting: Setting) -> Iterator[Finding]:
    """Tasks with too few questions, if as many answers flip as usual."""
    short = (
        (_short(number, setting.effect, ASSUMED), task, ASSUMED)
        for task, number in _questions(setting).items()
    )
    for numbers, tasks in _grouped(short).items():
        yield _finding(
            numbers, list(tasks), setting.effect, f"if {ASSUMED:.0%} of the answers flip"
        )


def after(answered: Answered) -> Iterator[Finding]:
    """The same by the flips that were seen; of several variants, by the one that flips most.

    Not by an ablation, which is worse on purpose, unless there is nothing else.
    """
    if not answered.variants:
        yield from before(answered.setting)
        return
    effect, base = answered.setting.effect, answered.base
    meant = [run for run in answered.variants if not run.variant.get("policy", {}).get("ablation")]
    seen = []
    for task in base.tasks:
        if kind_of(base, task) in _UNJUDGED:
            continue
        flips = [_flips(base, variant, task) for variant in meant or answered.variants]
        number, share = max(flips, key=lambda found: found[1])
        if number:
            seen.append((_short(number, effect, share), task, share))
    for numbers, tasks in _grouped(seen).items():
        least, most = percent(min(tasks.values())), percent(max(tasks.values()))
        shares = most if least == most else f"{least} to {most}"
        yield _finding(numbers, list(tasks), effect, f"as {shares} of the answers flip")


def _questions(setting: Setting) -> Mapping[str, int]:
    own = {t.name: len(t.questions) for t in setting.tasks if t.kind not in _UNJUDGED}
    for name, entry in setting.harness.items():
        parts = entry["protocol"]["parts"].values()
        judged = [part for part in parts if part["output_type"] != "loglikelihood_rolling"]
        if judged:
            own[name] = sum(part["questions"] for part in judged)
    return own


def _flips(base: Run, variant: Run, task: str) -> tuple[int, float]:
    """Questions that both were judged on, and the share of their answers (a seed each) that flip.

    Draws of one question are no more questions: they tell less than other questions would.
    """
    answers = {sample.key: sample.correct for sample in variant.of_task(task)}
    judged = [
        (sample.id, sample.correct != answers[sample.key])
        for sample in base.of_task(task)
        if sample.correct is not None and answers.get(sample.key) is not None
    ]
    flips = sum(flip for _, flip in judged)
    return len({name for name, _ in judged}), flips / len(judged) if judged else 0.0


def _short(number: int, effect: float, flipping: float) -> Short | None:
    found = resolution(number, discordant=flipping).paired
    if found is not None and found <= effect:
        return None
    needed = paired_questions(effect, discordant=max(flipping, effect), power=0.5)
    return number, None if found is None else round(found, 4), needed


def _grouped(found: Iterable[tuple[Short | None, str, float]]) -> dict[Short, dict[str, float]]:
    """Figures -> tasks of which they are true, with their share of flips."""
    groups: dict[Short, dict[str, float]] = {}
    for numbers, task, share in found:
        if numbers is not None:
            groups.setdefault(numbers, {})[task] = share
    return groups


def _finding(short: Short, tasks: list[str], effect: float, flipping: str) -> Finding:
    number, found, needed = short
    several = len(tasks) > 1
    *most, last = map(repr, tasks)
    named = f"tasks {', '.join(most)} and {last}" if several else f"task {last}"
    each = " each" if several else ""
    what = (
        f"resolve{each} differences of {100 * found:.2f} points or more, {flipping}"
        if found is not None
        else "resolve no difference at all"
    )
    looked = f"{100 * effect:g} point{'s are' if effect > 0.01 else ' is'} looked for"
    return Finding(
        name="resolution",
        level=WARN,
        task="" if several else tasks[0],
        text=(
            f"{named}: {number} question{'s' * (number != 1)} {what}; {looked}, which takes "
            f"{needed:,}. Ask more, or look for more (--effect)."
        ),
    )

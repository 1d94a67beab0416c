"""Answers are cut off by their budget, so that what is measured is the budget.

Lesson 7 of the paper: with 512 tokens on GSM8K a variant lost 3.20 points, "significant"; the 99th
percentile of the answers that ended was 701, and with 1024 tokens it lost 0.40 (p = 0.80).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from moeprune.core.guard import WARN, Answered, Finding
from moeprune.core.run import Run
from moeprune.core.sample import Sample
from moeprune.core.summary import Lengths
from moeprune.evaluate.guards._answers import kind_of, percent

_NEAR = 0.9  # of the budget
_TRUNCATED = 0.01  # more than this share: the 99th percentile of all answers is the budget itself
_LONG = "degeneration"  # a task that lets the model write on and on, and says itself what it counts


def after(answered: Answered) -> Iterator[Finding]:
    """Tasks, of every run, whose written answers come near their budget."""
    for run in (answered.base, *answered.variants):
        for task in run.tasks:
            written = [sample for sample in run.of_task(task) if sample.truncated is not None]
            if written and kind_of(run, task) != _LONG:
                text = _near(run, task, written, _budgets(answered, run, task))
                if text:
                    yield Finding(name="budget", level=WARN, task=task, text=text)


def _budgets(answered: Answered, run: Run, task: str) -> dict[str, int]:
    """Tokens that an answer may have: of our task, or of each part of lm-eval's."""
    own = answered.tasks.get(task)
    if own is not None:
        return {question.domain: own.protocol.max_new_tokens for question in own.questions}
    protocol = run.tasks[task].get("protocol")
    if not isinstance(protocol, Mapping):
        return {}
    parts = protocol.get("parts")
    if isinstance(parts, Mapping):
        known = {name: part for name, part in parts.items() if isinstance(part, Mapping)}
        found = {name: part.get("max_new_tokens") for name, part in known.items()}
    else:  # of ours, known by its header alone
        found = {sample.domain: protocol.get("max_new_tokens") for sample in run.of_task(task)}
    return {name: budget for name, budget in found.items() if isinstance(budget, int) and budget}


def _near(run: Run, task: str, written: Sequence[Sample], budgets: dict[str, int]) -> str:
    cut = sum(sample.truncated is True for sample in written)
    told = f"{cut} of {len(written)} answers of {run.name} ({percent(cut / len(written))})"
    if cut > _TRUNCATED * len(written):
        budget = max(budgets.values(), default=0)
        tokens = f" of {budget} tokens" if budget else ""
        return f"task {task!r}: {told} use up their budget{tokens}. Raise --max-new-tokens."
    for domain, budget in budgets.items():
        ended = [s.tokens for s in written if not s.truncated and s.domain == domain]
        lengths = Lengths.of(ended)
        if lengths is not None and lengths.p99 >= _NEAR * budget:
            return (
                f"task {task!r}: the 99th percentile of the answers of {run.name} that end is "
                f"{lengths.p99} tokens, near the budget of {budget} ({told} use it up). Raise "
                "--max-new-tokens."
            )
    return ""

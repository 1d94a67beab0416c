"""The protocol guards of an evaluation: what they are shown, before and after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moeprune.core.chat import has_template, thinking_switch
from moeprune.core.guard import Answered, Finding, Setting, refuse
from moeprune.core.run import Run
from moeprune.stages.eval_model import AskedModel
from moeprune.stages.eval_tasks import Exam

# What is expected of the unpruned model says nothing of another one that is alone.
_OF_THE_WHOLE = ("below-expected", "near-chance")


def setting(
    exam: Exam,
    asked: AskedModel,
    *,
    tokenizer: Any,
    effect: float,
    expected: Mapping[str, float],
) -> Setting:
    """What guards see before a question is asked.

    Args:
        exam: what is asked.
        asked: the model.
        tokenizer: of the model.
        effect: the difference in accuracy that is looked for, in [0, 1].
        expected: task -> accuracy that the unpruned model is known to reach.
    """
    template = has_template(tokenizer)
    # Asked of a template that is applied: another one may refuse what it is asked with.
    applied = [task.protocol.chat_template for task in exam.tasks if task.kind != "perplexity"]
    applied += [entry["protocol"]["chat_template"] for entry in exam.harness.entries.values()]
    return Setting(
        tasks=tuple(task for task in exam.tasks if task.kind != "perplexity"),
        harness=exam.harness.entries,
        corpora=tuple(task.name for task in exam.tasks if task.kind == "perplexity"),
        has_template=template,
        knows_thinking=template and any(applied) and thinking_switch(tokenizer) is not None,
        samples=asked.draws,
        effect=effect,
        expected=expected,
    )


def before(seen: Setting, on_warning: Callable[[str], None] | None) -> tuple[Finding, ...]:
    """What the guards say before a question is asked.

    Raises:
        UsageError: the answers would mean nothing.
    """
    from moeprune.evaluate import guarding

    found = guarding.before(seen)
    refuse(found)
    if on_warning is not None:
        for finding in found:
            on_warning(finding.text)
    return found


def after(
    runs: Sequence[Run], exam: Exam, seen: Setting, early: Sequence[Finding]
) -> tuple[Finding, ...]:
    """All that they say; the first variant that is the model as it is, is the base.

    Args:
        runs: the answers.
        exam: what was asked.
        seen: what was known before.
        early: what they said then.
    """
    from moeprune.evaluate import guarding

    whole = [run for run in runs if not run.variant]
    base = whole[0] if whole else runs[0]
    answered = Answered(
        base=base,
        variants=tuple(run for run in runs if run is not base),
        tasks={task.name: task for task in exam.tasks},
        setting=seen,
    )
    found = guarding.in_all(early, guarding.after(answered))
    return tuple(finding for finding in found if whole or finding.name not in _OF_THE_WHOLE)

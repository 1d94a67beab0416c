"""Protocol guards: what they see, and what they find.

A guard is a file of ``evaluate/guards`` with ``before(setting)``, called before a question is
asked, or ``after(answered)``, called once all variants have answered, or both. Each yields
findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from moeprune.core.run import Run
from moeprune.core.tasks import Task
from moeprune.errors import UsageError

STOP, WARN = "stop", "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a guard found.

    Attributes:
        name: of the guard.
        level: ``"stop"``: the numbers would mean nothing; ``"warn"``: read them with care.
        task: that it is about; ``""``: all of them, or several that the text names.
        text: one line: what, with which values, and what to do.
    """

    name: str
    level: str
    task: str
    text: str

    def __post_init__(self) -> None:
        assert self.level in (STOP, WARN), self.level
        assert self.text and "\n" not in self.text, self.text

    def to_json(self) -> dict[str, str]:
        """As ``run.json`` holds it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known before a question is asked.

    Attributes:
        tasks: ours.
        harness: of lm-eval: name -> entry of ``run.json``.
        corpora: texts whose perplexity is asked for.
        has_template: the tokenizer has a chat template.
        knows_thinking: and that template can switch thinking.
        samples: the model's own generation config draws tokens.
        effect: the difference in accuracy that is looked for, in [0, 1].
        expected: task -> accuracy that the unpruned model is known to reach, where its task does
            not say.
    """

    tasks: tuple[Task, ...] = ()
    harness: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    corpora: tuple[str, ...] = ()
    has_template: bool = False
    knows_thinking: bool = False
    samples: bool = False
    effect: float = 0.01
    expected: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What is known once the questions are answered.

    Attributes:
        base: the unpruned model's run.
        variants: the others'.
        tasks: ours, by name.
        setting: what was known before.
    """

    base: Run
    variants: tuple[Run, ...] = ()
    tasks: Mapping[str, Task] = field(default_factory=dict)
    setting: Setting = field(default_factory=Setting)


def refuse(findings: tuple[Finding, ...]) -> None:
    """Raise the first finding that stops.

    Raises:
        UsageError: there is one.
    """
    for finding in findings:
        if finding.level == STOP:
            more = sum(other.level == STOP for other in findings) - 1
            rest = f" ({more} more of this kind.)" if more else ""
            raise UsageError(f"{finding.text}{rest}")

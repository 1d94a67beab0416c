"""The tasks of lm-eval in an evaluation: read once, asked of every variant, kept task by task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.core.chat import has_template, thinking_switch
from moeprune.core.progress import OnProgress
from moeprune.core.run import Sample
from moeprune.errors import UsageError
from moeprune.stages.eval_journal import Answers

if TYPE_CHECKING:
    from moeprune.evaluate.harness.parts import HarnessPart
    from moeprune.evaluate.harness.settings import HarnessSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """What lm-eval asks.

    Attributes:
        parts: its tasks, questions read; none: lm-eval is not asked for.
        settings: how they are asked.
        how: what else asking takes.
        entries: task -> what ``run.json`` says of it.
    """

    parts: tuple[HarnessPart, ...] = ()
    settings: HarnessSettings | None = None
    how: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def questions(self) -> int:
        """How many there are."""
        return sum(int(part.facts["questions"]) for part in self.parts)

    def fingerprint(self) -> dict[str, Any]:
        """What decides the answers."""
        return {name: entry["sha256"] for name, entry in self.entries.items()}

    def ask(
        self,
        live: Any,
        tokenizer: Any,
        answers: Answers,
        number: int,
        *,
        batch_size: int,
        on_done: Callable[[Sequence[Sample], str], None],
        on_progress: OnProgress,
    ) -> None:
        """Ask a variant what it was not asked before.

        Args:
            live: the model, under the variant.
            tokenizer: of it.
            answers: that are there.
            number: of the variant.
            batch_size: sequences side by side.
            on_done: given the answers to each part, and its name.
            on_progress: told how far a part is.

        Raises:
            UsageError: lm-eval fails.
        """
        due = [part for part in self.parts if part.name not in answers.parts(number)]
        if not due:
            return
        from moeprune.evaluate.harness.run import ask_harness
        from moeprune.observe.placed import input_device

        assert self.settings is not None
        for part in due:
            found = ask_harness(
                live,
                tokenizer,
                part,
                self.settings,
                batch_size=batch_size,
                device=input_device(live),
                on_progress=on_progress,
                **self.how,
            )
            on_done(found, part.name)

    def kept(self, answers: Answers, number: int) -> tuple[Sample, ...]:
        """All answers of a variant, in the order of the parts."""
        kept = answers.parts(number)
        return tuple(sample for part in self.parts for sample in kept[part.name])


def read_harness_tasks(
    names: Sequence[str],
    *,
    tokenizer: Any,
    include: Sequence[str | Path],
    limit: int | None,
    shots: int | None,
    chat_template: bool | None,
    thinking: bool | None,
    think_end: str,
    max_new_tokens: int | None,
    temperature: float | None,
    trust_remote_code: bool,
) -> Harness:
    """Find the tasks and read their questions.

    Args:
        names: of tasks, groups or tags of lm-eval; none: nothing is imported.
        tokenizer: of the model.
        include: folders of YAML tasks.
        limit: the first so many questions of each.
        shots: in place of the task's own.
        chat_template: whether it is applied; to be stated where the tokenizer has one.
        thinking: whether the template is told to let the model think; to be stated where it knows.
        think_end: text after which the answer stands, where the model thinks.
        max_new_tokens: budget, in place of the task's own.
        temperature: in place of the task's own.
        trust_remote_code: allow tasks that run code.

    Raises:
        UsageError: something is to be stated and is not, or a task cannot be read or asked.
    """
    if not names:
        if include:
            raise UsageError(
                "--include is for lm-eval's tasks, and none is asked. Name one as lm_eval:NAME."
            )
        return Harness()
    from moeprune.evaluate.harness.parts import entries, read_harness
    from moeprune.evaluate.harness.run import check_askable
    from moeprune.evaluate.harness.settings import HarnessSettings

    template = has_template(tokenizer)
    if template and chat_template is None:
        raise UsageError(
            f"task lm_eval:{names[0]} needs to be told whether the tokenizer's chat template is "
            "applied. Pass --chat-template on|off."
        )
    switch = thinking_switch(tokenizer) if template and chat_template else None
    if switch is not None and thinking is None:
        raise UsageError(
            f"task lm_eval:{names[0]} needs to be told whether the model may think, which its chat "
            f"template can switch ({switch}). Pass --thinking on|off."
        )
    generation: dict[str, Any] = {}
    if max_new_tokens is not None:
        generation["max_gen_toks"] = max_new_tokens
    if temperature is not None:
        generation |= {"temperature": temperature, "do_sample": temperature > 0}
    settings = HarnessSettings(
        limit=limit,
        shots=shots,
        chat_template=bool(chat_template),
        thinking=thinking,
        template={} if switch is None else {switch: bool(thinking)},
        think_end=think_end if thinking else None,
        generation=generation,
    )
    parts = read_harness(names, settings, include=include, trust_remote_code=trust_remote_code)
    check_askable(parts, settings, tokenizer)
    return Harness(
        parts=parts,
        settings=settings,
        how={"trust_remote_code": trust_remote_code},
        entries=entries(parts, settings),
    )

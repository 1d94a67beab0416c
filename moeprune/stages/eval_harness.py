"""The tasks of lm-eval in an evaluation: read once, asked of every variant, kept task by task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moeprune.core.progress import OnProgress
from moeprune.core.sample import Key, Sample
from moeprune.stages.eval_journal import Answers
from moeprune.stages.eval_words import EvalWords

if TYPE_CHECKING:
    from moeprune.evaluate.harness.parts import HarnessPart
    from moeprune.evaluate.harness.settings import HarnessSettings

_ON_GPU = 8  # sequences


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

    @property
    def sha256(self) -> dict[str, Any]:
        """Task -> of what decides its answers."""
        return {name: entry["sha256"] for name, entry in self.entries.items()}

    def ask(
        self,
        live: Any,
        tokenizer: Any,
        answers: Answers,
        number: int,
        *,
        holds: Callable[[int], bool],
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
            holds: which of the parts this process asks.
            batch_size: sequences side by side.
            on_done: given the answers to each part, and its name.
            on_progress: told how far a part is.

        Raises:
            UsageError: lm-eval fails.
        """
        there = answers.parts(number)
        due = [part for i, part in enumerate(self.parts) if holds(i) and part.name not in there]
        if not due:
            return
        from moeprune.evaluate.harness.ask import ask_harness
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

    def ordered(self, samples: Iterable[Sample]) -> tuple[Sample, ...]:
        """All answers of a variant, in the order of the parts."""
        found: dict[str, dict[Key, Sample]] = {part.name: {} for part in self.parts}
        for sample in samples:
            found[sample.domain][sample.key] = sample
        return tuple(sample for answers in found.values() for sample in answers.values())


def rows_of(batch_size: int | None, live: Any) -> int:
    """Sequences that lm-eval runs side by side; how long they will be, nobody knows before.

    Args:
        batch_size: as the user says; None: nothing.
        live: the model.
    """
    from moeprune.observe.placed import input_device

    if batch_size is not None:
        return batch_size
    return _ON_GPU if input_device(live).type == "cuda" else 1


def read_harness_tasks(
    words: EvalWords, *, tokenizer: Any, length: int, trust_remote_code: bool
) -> Harness:
    """Find lm-eval's tasks and read their questions; none is asked for: nothing is imported.

    Args:
        words: of the user; a chat template, and thinking where it knows it, must be stated.
        tokenizer: of the model.
        length: tokens that the model has positions for.
        trust_remote_code: allow tasks that run code.

    Raises:
        UsageError: something is to be stated and is not, or a task cannot be read or asked.
    """
    if not words.harness:
        return Harness()
    from moeprune.evaluate.harness.ask import check_askable
    from moeprune.evaluate.harness.parts import entries, read_harness
    from moeprune.evaluate.harness.settings import HarnessSettings

    settings = HarnessSettings(
        limit=words.limit,
        shots=words.shots,
        chat_template=words.chat_template,
        thinking=words.thinking,
        think_end=words.think_end if words.thinking else None,
        generation=_generation(words),
    )
    parts = read_harness(
        words.harness, settings, include=words.folders, trust_remote_code=trust_remote_code
    )
    check_askable(parts, settings, tokenizer, length=length)
    return Harness(
        parts=parts,
        settings=settings,
        how={"trust_remote_code": trust_remote_code},
        entries=entries(parts, settings),
    )


def _generation(words: EvalWords) -> dict[str, Any]:
    """What replaces the tasks' own settings."""
    found: dict[str, Any] = {}
    if words.max_new_tokens is not None:
        found["max_gen_toks"] = words.max_new_tokens
    if words.temperature is not None:
        found |= {"temperature": words.temperature, "do_sample": words.temperature > 0}
    return found

"""What a user says of the questions of an evaluation, and of how they are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeprune.errors import UsageError

HARNESS = "lm_eval:"
CHUNK = 2048
THINK_END = "</think>"

Names = str | Path | Sequence[str | Path]
Sources = Mapping[str, str] | Sequence[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalWords:
    """As :func:`moeprune.stages.eval.eval` takes them."""

    tasks: Names = ()
    corpus: Sources = None
    held_out: Sources = None
    split: Sources = None  # texts of which every other document is held out
    degeneration: Names = ()
    chunk: int = CHUNK
    chunks: int | None = None
    limit: int | None = None
    shots: int | None = None
    chat_template: bool | None = None
    thinking: bool | None = None
    think_end: str = THINK_END
    max_new_tokens: int | None = None
    temperature: float | None = None
    seeds: int = 1
    expected: Mapping[str, float] = field(default_factory=dict)
    include: Names = ()

    def __post_init__(self) -> None:
        texts = self.corpus or self.held_out or self.split
        if not (_list(self.tasks) or texts or _list(self.degeneration)):
            raise UsageError(
                "nothing is asked: name tasks with --tasks, texts with --corpus or --held-out, or "
                "prompts with --degeneration."
            )
        for option, value, least in (
            ("--chunk", self.chunk, 2),
            ("--chunks", self.chunks, 1),
            ("--seeds", self.seeds, 1),
        ):
            if value is not None and value < least:
                raise UsageError(f"{option} {value} must be at least {least}.")
        if "" in self.harness:
            raise UsageError(f"{HARNESS} names no task. Write {HARNESS}NAME, e.g. {HARNESS}piqa.")
        if self.folders and not self.harness:
            raise UsageError(
                f"--include is for lm-eval's tasks, and none is asked. Name one as {HARNESS}NAME."
            )

    @property
    def files(self) -> list[str | Path]:
        """Files and folders of tasks."""
        return [name for name in _list(self.tasks) if not _of_harness(name)]

    @property
    def harness(self) -> list[str]:
        """Names of lm-eval's tasks."""
        names = [str(name) for name in _list(self.tasks) if _of_harness(name)]
        return list(dict.fromkeys(name.removeprefix(HARNESS) for name in names))

    @property
    def probes(self) -> list[str | Path]:
        """Files and sources of prompts after which the model writes at length."""
        return _list(self.degeneration)

    @property
    def folders(self) -> list[str | Path]:
        """Of lm-eval's YAML tasks."""
        return _list(self.include)

    @property
    def stated(self) -> dict[str, Any]:
        """Keys of a task's protocol that go before what its file states; None: not stated."""
        return {
            "limit": self.limit,
            "shots": self.shots,
            "chat_template": self.chat_template,
            "thinking": self.thinking,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
        }

    def request(self) -> dict[str, Any]:
        """Option -> value, of what is not in the tasks themselves, or is better named so."""
        return {
            **{f"--{key.replace('_', '-')}": value for key, value in self.stated.items()},
            "--seeds": self.seeds,
            "--chunk": self.chunk,
            "--chunks": self.chunks,
            "--think-end": self.think_end,
        }


def _list(names: Names) -> list[str | Path]:
    return [names] if isinstance(names, str | Path) else list(names)


def _of_harness(name: str | Path) -> bool:
    return isinstance(name, str) and name.startswith(HARNESS)

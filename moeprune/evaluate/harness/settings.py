"""How lm-eval is told to ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moeprune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessSettings:
    """How lm-eval asks; all of it decides the model's input.

    Attributes:
        limit: the first so many questions of each task; None: all.
        shots: solved questions before each, in place of the task's own number; a task that states
            0 keeps it, as with lm-eval itself.
        chat_template: whether the tokenizer's is applied; None: not stated.
        thinking: whether the template is told to let the model think; None: not stated.
        think_end: text after which the answer stands, where the model thinks.
        system: message before all others, where a chat template is applied.
        generation: settings that replace those of the tasks (``max_gen_toks``, ``temperature``, …).
        seed: of draws, of shots and of tokens; lm-eval's own by default.
    """

    limit: int | None = None
    shots: int | None = None
    chat_template: bool | None = None
    thinking: bool | None = None
    think_end: str | None = None
    system: str | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1234

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("shots", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} {value} must be at least {least}.")
        if self.thinking and self.think_end is None:
            raise UsageError(
                "lm-eval must be told where thinking ends, or it would take the thoughts for the "
                "answer. Give the text after which the answer stands, as '</think>'."
            )

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain types."""
        return {
            "limit": self.limit,
            "shots": self.shots,
            "chat_template": self.chat_template,
            "thinking": self.thinking,
            "think_end": self.think_end,
            "system": self.system,
            "generation": dict(self.generation),
            "seed": self.seed,
        }

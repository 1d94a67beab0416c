"""What tasks state of their protocol, ours and lm-eval's alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from moeprune.core.guard import Setting

_PLAIN = ("perplexity",)  # kinds that read a text as it is


@dataclass(frozen=True, slots=True)
class Stated:
    """Of one task; None: not stated."""

    task: str
    chat_template: bool | None
    thinking: bool | None


def stated(setting: Setting) -> Iterator[Stated]:
    """Of every task that asks questions."""
    for task in setting.tasks:
        if task.kind not in _PLAIN:
            yield Stated(task.name, task.protocol.chat_template, task.protocol.thinking)
    for name, entry in setting.harness.items():
        protocol: Any = entry["protocol"]
        yield Stated(name, protocol["chat_template"], protocol["thinking"])

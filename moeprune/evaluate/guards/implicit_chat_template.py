"""Whether the chat template is applied is left to a default.

Lesson 6 of the paper: match the protocol to the model's form. The same questions, as a chat or
bare, give numbers that cannot be compared; which it was must not be guessed.
"""

from __future__ import annotations

from collections.abc import Iterator

from moeprune.core.guard import STOP, Finding, Setting
from moeprune.evaluate.guards._stated import stated


def before(setting: Setting) -> Iterator[Finding]:
    """Tasks that do not state it, where the tokenizer has a template."""
    for task in stated(setting):
        if setting.has_template and task.chat_template is None:
            yield Finding(
                name="implicit-chat-template",
                level=STOP,
                task=task.task,
                text=(
                    f"task {task.task!r} does not state whether the tokenizer's chat template is "
                    "applied. Pass --chat-template on|off."
                ),
            )

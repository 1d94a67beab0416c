"""Whether the model may think is left to its chat template.

Lesson 10 of the paper: models think spontaneously. Disable it, or allow it, but say so.
"""

from __future__ import annotations

from collections.abc import Iterator

from moeprune.core.guard import STOP, Finding, Setting
from moeprune.evaluate.guards._stated import stated


def before(setting: Setting) -> Iterator[Finding]:
    """Tasks asked as a chat that do not state it, where the template can switch it."""
    for task in stated(setting):
        if setting.knows_thinking and task.chat_template and task.thinking is None:
            yield Finding(
                name="implicit-thinking",
                level=STOP,
                task=task.task,
                text=(
                    f"task {task.task!r} does not state whether the model may think, and its chat "
                    "template can switch it. Pass --thinking on|off."
                ),
            )

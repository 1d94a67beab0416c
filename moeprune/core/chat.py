"""A chat as a tokenizer's own template writes it. The tokenizer is handed in, not imported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

# Some templates write the current date; tokens that change from day to day cannot be merged,
# compared or measured again.
_DAY = datetime(2025, 1, 1, 12)
_TODAY = re.compile(r"""\bstrftime_now\(\s*(?P<quote>["'])(?P<form>[^"'\\]*)(?P=quote)\s*\)""")

# Names of the switch in chat templates: Qwen, GLM and others; DeepSeek.
THINKING = ("enable_thinking", "thinking")

# What gpt-oss's template calls it; a text.
EFFORT = "reasoning_effort"


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer has a chat template."""
    return getattr(tokenizer, "chat_template", None) is not None


def dated(template: str) -> str:
    """The template, on the same day each time."""
    return _TODAY.sub(lambda call: repr(_DAY.strftime(call["form"])), template)


def rendered(tokenizer: Any, chat: Sequence[Mapping[str, Any]], **told: Any) -> str:
    """A chat as the tokenizer's template writes it, on the same day each time.

    Args:
        tokenizer: of the model, with a chat template.
        chat: messages with ``role`` and ``content``.
        told: what else the template is told.

    Raises:
        Exception: whatever the template raises about these messages.
    """
    template = tokenizer.chat_template
    if isinstance(template, Mapping):  # several by name, of which one is for chats without tools
        template = template.get("default")
    if isinstance(template, str):
        told["chat_template"] = dated(template)
    return str(tokenizer.apply_chat_template(list(chat), tokenize=False, **told))


def thinking_switch(tokenizer: Any) -> str | None:
    """What the template calls the switch that lets a model think; None: it reads none.

    Raises:
        Exception: whatever the template raises about a message of a user.
    """
    return next((name for name in THINKING if _reads(tokenizer, name, (True, False))), None)


def reads_effort(tokenizer: Any) -> bool:
    """Whether the template reads how much the model is to think.

    Raises:
        Exception: whatever the template raises about a message of a user.
    """
    return _reads(tokenizer, EFFORT, ("low", "high"))


def _reads(tokenizer: Any, name: str, values: Sequence[Any]) -> bool:
    chat = [{"role": "user", "content": "1 + 2 = ?"}]
    texts = {
        rendered(tokenizer, chat, add_generation_prompt=True, **{name: value}) for value in values
    }
    return len(texts) > 1

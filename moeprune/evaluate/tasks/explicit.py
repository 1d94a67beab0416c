"""What a task must state, since guessing it would change the numbers without a word."""

from __future__ import annotations

from typing import Any

from moeprune.core.chat import has_template, reads_effort, rendered, thinking_switch
from moeprune.core.foreign import foreign_errors
from moeprune.core.tasks import Task
from moeprune.errors import UsageError

_CHAT = "Pass --chat-template on|off, or write chat_template = true|false in its file."
_THINKING = "Pass --thinking on|off, or write thinking = true|false in its file."
_OPENED = "<think>"  # how a prompt ends after which a model cannot but think
_PLAIN = ("perplexity",)  # kinds that read a text as it is


def check_explicit(task: Task, tokenizer: Any) -> None:
    """Check that a task states whether the chat template is applied, and whether the model thinks.

    Args:
        task: about to be asked.
        tokenizer: of the model.

    Raises:
        UsageError: the tokenizer has a chat template, or the template a switch for thinking, and
            nothing is stated; or what is stated cannot be had of this tokenizer.
    """
    protocol, what = task.protocol, f"task {task.name!r}"
    if task.kind in _PLAIN:
        return
    if not has_template(tokenizer):
        if protocol.chat_template:
            raise UsageError(
                f"{what} states a chat template, and the model's tokenizer has none. "
                "Pass --chat-template off."
            )
        _check_plain(task)
        return
    if protocol.chat_template is None:
        raise UsageError(
            f"{what} does not state whether the chat template of the model's tokenizer is applied. "
            f"{_CHAT}"
        )
    if not protocol.chat_template:
        _check_plain(task)
        return
    with foreign_errors(
        f"{what}: the tokenizer's chat template refuses a message of a user",
        "Pass --chat-template off.",
        error=UsageError,
        also=(ArithmeticError,),
    ):
        switch = thinking_switch(tokenizer)
        opened = opens_thought(tokenizer)
        weighs = protocol.effort is None or reads_effort(tokenizer)
    if not weighs:
        raise UsageError(
            f"{what} states effort = {protocol.effort!r}, which the tokenizer's chat template does "
            "not read. Leave it out."
        )
    if protocol.thinking is None:
        if switch is not None:
            raise UsageError(
                f"{what} does not state whether the model may think, which its chat template can "
                f"switch ({switch}). {_THINKING}"
            )
    elif switch is None and protocol.thinking != opened:
        does = "thinks always" if opened else "has no switch for it"
        raise UsageError(
            f"{what} states thinking {'on' if protocol.thinking else 'off'}, and the tokenizer's "
            f"chat template {does}. Leave it out."
        )


def _check_plain(task: Task) -> None:
    """Check that nothing is stated that only a chat template says."""
    if task.protocol.system:
        raise UsageError(
            f"task {task.name!r} states a system message, and only a chat template says it. Pass "
            "--chat-template on, or write it as its description."
        )
    if task.protocol.thinking or task.protocol.effort is not None:
        raise UsageError(
            f"task {task.name!r} states how the model thinks, which only a chat template tells it. "
            "Pass --chat-template on, or --thinking off."
        )


def opens_thought(tokenizer: Any) -> bool:
    """Whether a prompt ends with the begin of a thought, switched or not.

    Raises:
        Exception: whatever the template raises about a message of a user.
    """
    chat = [{"role": "user", "content": "1 + 2 = ?"}]
    return rendered(tokenizer, chat, add_generation_prompt=True).rstrip().endswith(_OPENED)

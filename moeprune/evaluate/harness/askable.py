"""Whether tasks of lm-eval can be asked as it is stated, and of this model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moeprune.core.chat import has_template, thinking_switch
from moeprune.core.foreign import foreign_errors
from moeprune.errors import UsageError
from moeprune.evaluate.harness.parts import HarnessPart
from moeprune.evaluate.harness.settings import HarnessSettings
from moeprune.evaluate.tasks.explicit import opens_thought


def check_askable(
    parts: Sequence[HarnessPart],
    settings: HarnessSettings,
    tokenizer: Any,
    *,
    length: int | None = None,
) -> dict[str, bool]:
    """Check what needs no model.

    Args:
        parts: the tasks.
        settings: how they are to be asked.
        tokenizer: of the model.
        length: tokens that the model has positions for; None: not known.

    Returns:
        What the chat template is told: its own name of the switch for thinking, where it has one.

    Raises:
        UsageError: whether a chat template is applied or the model thinks is not stated, or what
            is stated cannot be had of this tokenizer or these tasks; or a budget leaves no room for
            a prompt.
    """
    for part in parts:
        _check_budget(part, length)
        if settings.thinking and not part.writes:
            raise UsageError(
                f"task {part.name!r} of lm-eval compares likelihoods, and a model that thinks "
                "would answer after its thoughts. Pass --thinking off, or name a task whose "
                "answers are written."
            )
    if settings.chat_template and not has_template(tokenizer):
        raise UsageError(
            "the tokenizer has no chat template, and lm-eval is to apply it. "
            "Pass --chat-template off."
        )
    if settings.chat_template is None and has_template(tokenizer):
        raise UsageError(
            "it is not stated whether lm-eval applies the chat template of the model's tokenizer. "
            "Pass --chat-template on|off."
        )
    if not settings.chat_template:
        if settings.thinking:
            raise UsageError(
                "only a chat template tells a model to think. Pass --chat-template on, or "
                "--thinking off."
            )
        return {}
    with foreign_errors(
        "the tokenizer's chat template refuses a message of a user",
        "Pass --chat-template off.",
        error=UsageError,
        also=(ArithmeticError,),
    ):
        switch = thinking_switch(tokenizer)
        opened = switch is None and opens_thought(tokenizer)
    if settings.thinking is None and switch is not None:
        raise UsageError(
            "it is not stated whether the model may think under lm-eval, which its chat template "
            f"can switch ({switch}). Pass --thinking on|off."
        )
    if opened and not settings.thinking:
        raise UsageError(
            "the tokenizer's chat template always lets the model think, and lm-eval would take the "
            "thoughts for the answer. Pass --thinking on, or --chat-template off."
        )
    if settings.thinking is not None and switch is None and not opened:
        raise UsageError(
            "the tokenizer's chat template has no switch for thinking. Leave --thinking out."
        )
    return {} if switch is None else {switch: bool(settings.thinking)}


def check_fits(part: HarnessPart, asked: Any) -> None:
    """Check what lm-eval would meet in the middle of its work, or word in its own way.

    Args:
        part: a task.
        asked: the model as lm-eval asks it.

    Raises:
        UsageError: the budget leaves no room for a prompt, or no token can stand before a text.
    """
    _check_budget(part, asked.max_length)
    if asked.prefix_token_id is None:
        raise UsageError(
            "the tokenizer has neither a begin nor an end token, and lm-eval puts one before each "
            "text. Leave lm_eval: tasks out."
        )


def _check_budget(part: HarnessPart, length: int | None) -> None:
    budget = part.facts["max_new_tokens"]
    if budget is not None and length is not None and budget >= length:
        raise UsageError(
            f"task {part.name!r} of lm-eval lets the model write {budget} tokens, and the model "
            f"has {length} positions for these and the prompt. Pass --max-new-tokens."
        )

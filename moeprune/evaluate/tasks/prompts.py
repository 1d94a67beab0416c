"""What a model is given: a question after its shots, and the continuations that are scored.

The plain text and the chat are, byte for byte, those of lm-evaluation-harness for the same texts
and delimiters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moeprune.core.chat import EFFORT, rendered, thinking_switch
from moeprune.core.foreign import foreign_errors
from moeprune.core.tasks import Protocol, Question, Task
from moeprune.errors import UsageError
from moeprune.evaluate.tasks.draws import shots_of
from moeprune.evaluate.tasks.keys import FIELDS
from moeprune.evaluate.tasks.letters import letters_of

_FIELD = re.compile("|".join(rf"\{{{name}\}}" for name in FIELDS))
_WITH_OPTIONS = "{question}\n{options}\nAnswer:"


def context_texts(task: Task, question: Question, *, tokenizer: Any) -> tuple[str, ...]:
    """Description, shots and question, as a plain text or in the tokenizer's chat template.

    Under a chat template the description goes into the system message, and each shot is a turn of
    the user and one of the assistant.

    Args:
        task: to which the question belongs.
        question: to ask.
        tokenizer: of the model; unused where no chat template is applied.

    Returns:
        One text, or one a choice where the choices stand in the text.

    Raises:
        UsageError: the chat template refuses the messages, or there are too few shots.
    """
    protocol = task.protocol
    solved = [(asked(shot, protocol), shown(shot, protocol)) for shot in shots_of(task, question)]
    description = filled(protocol.description, {"domain": question.domain})
    last = _last(question, protocol)
    if not protocol.chat_template:
        before = "".join(
            f"{text}{protocol.delimiter}{answer}{protocol.separator}" for text, answer in solved
        )
        return tuple(f"{description}{before}{text}" for text in last)
    system = _joined(protocol.system, description, protocol.separator)
    chat = [{"role": "system", "content": system}] if system else []
    for text, answer in solved:
        chat += _turn("user", text), _turn("assistant", answer)
    with foreign_errors(
        f"task {task.name!r}, question {question.id!r}: the tokenizer's chat template refuses it",
        "Leave out what it refuses (system, description, shots), or pass --chat-template off.",
        error=UsageError,
        also=(ArithmeticError,),
    ):
        told = template_told(protocol, tokenizer)
        return tuple(rendered(tokenizer, [*chat, _turn("user", text)], **told) for text in last)


def continuation_texts(task: Task, question: Question) -> tuple[str, ...]:
    """What is scored after the context, one text a choice: the delimiter, and what it separates.

    Under a chat template there is no delimiter, since the template ends a turn itself.
    """
    protocol = task.protocol
    delimiter = "" if protocol.chat_template else protocol.delimiter
    if question.contexts:
        return tuple(f"{delimiter}{question.continuation}" for _ in question.contexts)
    ends = letters_of(question) if protocol.kind == "letters" else question.choices
    return tuple(f"{delimiter}{end}" for end in ends)


def template_told(protocol: Protocol, tokenizer: Any) -> dict[str, Any]:
    """What the chat template is told beside the messages: to begin an answer, and to think or not.

    Raises:
        Exception: whatever the template raises about a message of a user.
    """
    told: dict[str, Any] = {"add_generation_prompt": True}
    if protocol.thinking is not None:
        switch = thinking_switch(tokenizer)
        if switch is not None:
            told[switch] = protocol.thinking
    if protocol.effort is not None:
        told[EFFORT] = protocol.effort
    return told


def asked(question: Question, protocol: Protocol, text: str | None = None) -> str:
    """A question by its template, without an answer.

    Args:
        question: to ask.
        protocol: with the template.
        text: in the place of the question's own; None: that one, or the right context.
    """
    if text is None:
        right = question.right
        text = (
            question.contexts[right] if question.contexts and right is not None else question.text
        )
    lettered = question.choices and protocol.kind != "cloze"
    template = protocol.question or (_WITH_OPTIONS if lettered else "{question}")
    options = "\n".join(
        filled(protocol.option, {"letter": letter, "choice": choice})
        for letter, choice in zip(letters_of(question), question.choices, strict=False)
    )
    return filled(template, {"question": text, "options": options, "domain": question.domain})


def shown(question: Question, protocol: Protocol) -> str:
    """The answer that a shot shows."""
    if question.contexts:
        return question.continuation
    if protocol.kind in ("letters", "cloze"):
        assert question.right is not None
        ends = letters_of(question) if protocol.kind == "letters" else question.choices
        return ends[question.right]
    return question.shown or question.answers[0]


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template with its fields filled in once: braces in what is filled in stay what they are."""
    return _FIELD.sub(lambda field: values.get(field[0][1:-1], field[0]), template)


def _last(question: Question, protocol: Protocol) -> tuple[str, ...]:
    if not question.contexts:
        return (asked(question, protocol),)
    return tuple(asked(question, protocol, text) for text in question.contexts)


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _joined(first: str, second: str, separator: str) -> str:
    """Both texts, with the separator between where neither has white space there."""
    if not first or not second:
        return first or second
    spaced = first[-1].isspace() or second[0].isspace()
    return f"{first}{'' if spaced else separator}{second}"

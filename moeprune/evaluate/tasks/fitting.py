"""Whether a question can be asked by a protocol, and what is right where it is."""

from __future__ import annotations

from dataclasses import replace

from moeprune.core.tasks import Protocol, Question
from moeprune.errors import UsageError
from moeprune.evaluate.extract import LETTER
from moeprune.evaluate.tasks.letters import LETTERS

# Kinds that tell right from wrong, and so need to know what is right.
_CHOOSING = ("letters", "cloze")
_WRITING = ("generate",)


def fitted(question: Question, protocol: Protocol, where: str, *, shot: bool = False) -> Question:
    """The question as its kind needs it: one with choices that is answered in words gets answers.

    Args:
        question: as its row states it.
        protocol: by which it is asked.
        where: file and line, for messages.
        shot: it is to be shown solved.

    Raises:
        UsageError: it lacks what the kind needs, or has more choices than there are letters.
    """
    kind = protocol.kind
    if kind in _CHOOSING and not question.choices:
        raise UsageError(
            f"{where} has no 'choices', which kind {kind!r} needs. Add them, or ask in words: "
            "kind = 'generate'."
        )
    if question.contexts and kind != "cloze":
        raise UsageError(f"{where} has 'contexts', which only kind 'cloze' scores, not {kind!r}.")
    if kind == "cloze" and not question.contexts:
        for place, choice in enumerate(question.choices):
            if not choice.strip():
                raise UsageError(f"{where}: choice {place} is blank, so nothing can be scored.")
    lettered = question.choices and (kind != "cloze" or "{options}" in protocol.question)
    if lettered and len(question.choices) > len(LETTERS):
        raise UsageError(
            f"{where} has {len(question.choices)} choices and there are {len(LETTERS)} letters. "
            "Leave the question out."
        )
    if kind not in _CHOOSING and question.choices and question.right is not None:
        lone = protocol.extract == LETTER
        right = (LETTERS if lone else question.choices)[question.right]
        return replace(question, answers=(right,))
    if (kind in _WRITING or shot) and not question.choices and not question.answers:
        loops = ", or only look for loops: --degeneration FILE, or kind = 'degeneration'"
        add = "Add it" + ("" if shot else loops)
        raise UsageError(f"{where} has no 'answer', which kind {kind!r} needs. {add}.")
    return question

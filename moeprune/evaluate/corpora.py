"""Texts as a task whose figure is perplexity."""

from __future__ import annotations

from collections.abc import Sequence

from moeprune.core.tasks import Protocol, Question, Task


def corpus_task(
    name: str, texts: Sequence[str], *, length: int | None = None, domain: str = ""
) -> Task:
    """A task of kind ``perplexity`` over texts.

    Each text is read in windows of its own; how many, and of which tokens, is the tokenizer's
    affair, so the windows are made with the requests, the same for every variant of a model.

    Args:
        name: of the task.
        texts: documents, each read from its beginning; a text without words is left out.
        length: tokens that a window predicts; None: 2048, or what the model reads.
        domain: that it is reported under; "": the name.

    Raises:
        UsageError: there is no text.
    """
    return Task(
        name=name,
        protocol=Protocol(kind="perplexity", length=length),
        questions=tuple(
            Question(id=f"{number:06}", domain=domain or name, text=text)
            for number, text in enumerate(texts)
            if text.strip()
        ),
    )

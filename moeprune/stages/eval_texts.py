"""Texts whose perplexity is asked for: two splits, each one task; a text is a domain of it.

Where one text serves both splits, every other document is held out, and of each document as few
windows are read as it takes, the first windows of all documents before the second of any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from moeprune.core.chat import has_template, rendered
from moeprune.core.foreign import foreign_errors
from moeprune.core.tasks import Protocol, Question, Task
from moeprune.errors import DomainError, UsageError
from moeprune.stages.eval_words import EvalWords, Sources

if TYPE_CHECKING:
    from moeprune.evaluate.requests import Request

TUNING, HELD_OUT = "perplexity-tuning", "perplexity-held-out"
OPTIONS = {TUNING: "--corpus", HELD_OUT: "--held-out"}


def text_tasks(words: EvalWords, tokenizer: Any) -> tuple[Task, ...]:
    """The texts of each split that is asked for.

    Args:
        words: of the user.
        tokenizer: of the model.

    Raises:
        UsageError: a source is none, or one of a single document is to be split.
        DomainError: a text cannot be read.
    """
    given: dict[str, Sources] = {TUNING: words.corpus, HELD_OUT: words.held_out}
    if words.split:
        given = dict.fromkeys(given, words.split)
    return tuple(
        _task(split, sources, words, tokenizer) for split, sources in given.items() if sources
    )


def windows(requests: Sequence[Request], words: EvalWords) -> tuple[Request, ...]:
    """Of each text as many windows as are asked for: its first, or the first of its documents.

    Args:
        requests: all windows of a task.
        words: of the user.
    """
    groups: dict[str, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.question.domain, []).append(request)
    taken: set[int] = set()
    for group in groups.values():
        ordered = sorted(group, key=_window) if words.split else group
        taken |= set(map(id, ordered[: words.chunks]))
    return tuple(request for request in requests if id(request) in taken)


def splits(
    tasks: Sequence[Task], requests: Sequence[tuple[Request, ...]]
) -> dict[str, tuple[Request, ...]]:
    """The windows of each split that is asked for, tuning first.

    Args:
        tasks: of an evaluation.
        requests: of each of them.
    """
    asked = zip(tasks, requests, strict=True)
    return {task.name: own for task, own in asked if task.name in OPTIONS}


def check_apart(splits: Iterable[Sequence[Request]]) -> None:
    """Check that what is held out was not tuned on.

    Args:
        splits: the windows of each.

    Raises:
        UsageError: a window is in two of them.
    """
    seen: dict[str, str] = {}
    for requests in splits:
        same = [request for request in requests if request.sha256 in seen]
        if same:
            raise UsageError(
                f"--held-out has {len(same)} chunks of text that --corpus has too "
                f"({same[0].question.id} is {seen[same[0].sha256]}), so it would not say how the "
                "choice does on other text. Name other text, or a longer --chunk."
            )
        seen |= {request.sha256: request.question.id for request in requests}


def _task(split: str, sources: Sources, words: EvalWords, tokenizer: Any) -> Task:
    from moeprune.observe.named import named_domains

    questions, details = [], {}
    for name, source in named_domains(sources, option=OPTIONS[split]).items():
        for number, document in _documents(name, source, split, words):
            text = _text(document, tokenizer, chat_template=words.chat_template)
            questions.append(Question(id=f"{name}/{number}", domain=name, text=text))
            if not isinstance(document.text, str):
                details["chats"] = True
    protocol = Protocol(kind="perplexity", length=words.chunk, chat_template=words.chat_template)
    return Task(name=split, protocol=protocol, questions=tuple(questions), details=details)


def _documents(name: str, source: str, split: str, words: EvalWords) -> Iterator[tuple[int, Any]]:
    """Number and document, of those that may be read."""
    from moeprune.observe.sources import read_source, streamed

    chunks = words.chunks
    if streamed(source) and chunks is None:
        raise UsageError(
            f"{source}: of a dataset, say how many documents to read at most, and windows of them: "
            "--chunks N."
        )
    if not words.split:
        yield from enumerate(read_source(source, samples=chunks).documents)
        return
    read = read_source(source, samples=None if chunks is None else 2 * chunks)
    if read.total < 2:
        raise UsageError(
            f"{name}={source} holds one document, of which nothing can be held out. Give text of "
            "several (in a .txt file form feeds separate them), or --corpus and --held-out both."
        )
    own = range(int(split == HELD_OUT), read.total, 2)[:chunks]
    yield from zip(own, read.take(own), strict=True)


def _window(request: Request) -> int:
    """Its number in its document."""
    return int(request.question.id.rpartition("/")[2])


def _text(document: Any, tokenizer: Any, *, chat_template: bool | None) -> str:
    if isinstance(document.text, str):
        return str(document.text)
    if not has_template(tokenizer) or not chat_template:
        raise UsageError(
            f"{document.where} holds 'messages', which only a chat template writes as one text. "
            "Pass --chat-template on where the tokenizer has one, or give rows with 'text'."
        )
    with foreign_errors(
        f"{document.where}: the tokenizer's chat template refuses these messages",
        "Give rows with 'text' instead.",
        error=DomainError,
        also=(ArithmeticError,),
    ):
        return rendered(tokenizer, document.text)

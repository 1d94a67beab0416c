"""The answers whose loss an evaluation measures: of its tasks, and of its texts.

Texts are read as calibration reads them, of which a plan's prediction is: of rows with answers
these, of other texts all. Of tasks it is the right choice, the worked solution that a shot would
show, or the first of the right answers where an answer is taken as it is written; where it is
searched for in a longer text, what a model would have to write is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moeprune.core.tasks import Question, Task
from moeprune.errors import UsageError
from moeprune.stages.eval_tasks import Exam
from moeprune.stages.eval_texts import HELD_OUT, OPTIONS, TUNING
from moeprune.stages.eval_words import EvalWords

if TYPE_CHECKING:
    from moeprune.evaluate.requests import Request
    from moeprune.observe.domains import Corpus

# How a written answer is found where all that is written is the answer.
_WHOLE = re.compile(r"exact|regex:(\\A|\^).*(\\Z|\$)", re.DOTALL)

AnswerTexts = dict[str, tuple["Request", ...]]
"""Task, or split of texts -> its answers, each with what stands before it."""


def answer_texts(exam: Exam, words: EvalWords, tokenizer: Any) -> AnswerTexts:
    """The answers of all that is asked; of what has none, nothing.

    Args:
        exam: what is asked.
        words: of the user.
        tokenizer: of the model.

    Raises:
        DomainError: a text cannot be read, or the chat template does not let answers be found.
        UsageError: an answer does not fit the model.
    """
    found: AnswerTexts = {}
    for task, requests in zip(exam.tasks, exam.requests, strict=True):
        found[task.name] = tuple(_of_task(task, requests, exam, tokenizer))
    for split, sources in ((TUNING, words.corpus), (HELD_OUT, words.held_out)):
        if sources:
            found[split] = tuple(_of_texts(split, sources, exam, words, tokenizer))
    return {name: own for name, own in found.items() if own}


def _of_task(
    task: Task, requests: Sequence[Request], exam: Exam, tokenizer: Any
) -> Iterator[Request]:
    from moeprune.evaluate.encoding import Encoder
    from moeprune.evaluate.requests import Request, to_score
    from moeprune.evaluate.tasks.prompts import context_texts, shown

    protocol = task.protocol
    if task.kind == "generate":
        encoder = Encoder(tokenizer, max_length=exam.length)
        delimiter = "" if protocol.chat_template else protocol.delimiter
        for question in task.questions:
            if question.shown or (question.answers and _WHOLE.fullmatch(protocol.extract)):
                (text,) = context_texts(task, question, tokenizer=tokenizer)
                answer = f"{delimiter}{shown(question, protocol)}"
                yield to_score(question, [(text, answer)], encoder=encoder)
        return
    for request in requests:
        right = request.question.right
        if request.pieces and right is not None:
            yield Request(question=request.question, pieces=(request.pieces[right],))


def _of_texts(
    split: str, sources: Any, exam: Exam, words: EvalWords, tokenizer: Any
) -> Iterator[Request]:
    from moeprune.observe.domains import read_corpus
    from moeprune.observe.named import named_domains

    for name, source in named_domains(sources, option=OPTIONS[split]).items():
        corpus = read_corpus(
            name,
            source,
            tokenizer=tokenizer,
            length=min(words.chunk, exam.length),
            samples=words.chunks,
            chat_template=bool(words.chat_template),
            answers=True,
        )
        yield from _of_corpus(corpus)


def _of_corpus(corpus: Corpus) -> Iterator[Request]:
    """A request a document, a piece an answer."""
    from moeprune.evaluate.requests import Piece, Request

    for row, (number, ids) in enumerate(zip(corpus.numbers, corpus.documents, strict=True)):
        targets = corpus.targets[row] if corpus.targets else np.arange(ids.size) > 0
        edges = np.flatnonzero(np.diff(targets, prepend=False, append=False)).reshape(-1, 2)
        if len(edges):
            yield Request(
                question=Question(id=f"{corpus.name}/{number}", domain=corpus.name, text=""),
                pieces=tuple(
                    Piece(context=ids[:start], continuation=ids[start:end]) for start, end in edges
                ),
            )


def check_any(found: AnswerTexts) -> None:
    """Check that there is an answer.

    Raises:
        UsageError: there is none.
    """
    if not found:
        raise UsageError(
            "--answer-loss takes the loss of right answers, and what is asked states none. Add "
            "--held-out NAME=SOURCE with rows of prompt and completion, or a task with answers."
        )

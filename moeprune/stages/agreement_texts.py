"""The texts that two models read so that their selections can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeprune.core.tasks import Task
from moeprune.errors import MismatchError, UsageError
from moeprune.stages.eval_tasks import Exam

if TYPE_CHECKING:
    from moeprune.evaluate.requests import Request

_PROBES = "degeneration"  # beginnings of texts that calibration reads in its own way


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementText:
    """What both models read at once.

    Attributes:
        ids: token ids.
        first: place of the first token that counts: those before it were counted with a text that
            overlaps this one.
        document: of which it is a part.
        domain: of the document.
    """

    ids: tuple[int, ...]
    first: int
    document: str
    domain: str

    @property
    def tokens(self) -> int:
        """How many count."""
        return len(self.ids) - self.first


def agreement_texts(exam: Exam) -> tuple[AgreementText, ...]:
    """The windows of texts for perplexity; where none are asked for, the prompts of questions.

    Raises:
        UsageError: there are neither.
    """
    found: dict[tuple[str, str], AgreementText] = {}
    for task, requests in _read(exam):
        for request in requests:
            # Of a question that is asked several times, once.
            found.setdefault((task.name, request.question.id), _text(task, request))
    if not found:
        raise UsageError(
            "--agreement-with compares what two models select on texts, and tasks of lm-eval and "
            "--degeneration give none. Add --corpus or --held-out."
        )
    return tuple(found.values())


def check_same_ids(exam: Exam, tokenizer: Any, *, name: str) -> None:
    """Check that another model's tokenizer gives the same ids.

    Args:
        exam: what is asked, encoded by the tokenizer of the model that is evaluated.
        tokenizer: the other one.
        name: of its model.

    Raises:
        MismatchError: it does not.
    """
    from moeprune.evaluate.asking import requests_of
    from moeprune.evaluate.encoding import Encoder

    encoder = Encoder(tokenizer, max_length=exam.length)
    for task, requests in _read(exam):
        seeds = sorted({request.seed for request in requests})
        try:
            others = requests_of(task, encoder=encoder, tokenizer=tokenizer, seeds=seeds)
        except UsageError as problem:
            raise MismatchError(f"--agreement-with {name}: {problem}") from problem
        known = {(request.question.id, request.seed): request.sha256 for request in others}
        for request in requests:
            if known.get((request.question.id, request.seed)) != request.sha256:
                raise MismatchError(
                    f"--agreement-with {name}: its tokenizer makes other tokens of "
                    f"{request.question.id!r} than that of the model, so no token can be compared. "
                    "Name a model with the same tokenizer."
                )


def _read(exam: Exam) -> Iterator[tuple[Task, tuple[Request, ...]]]:
    asked = list(zip(exam.tasks, exam.requests, strict=True))
    texts = [one for one in asked if one[0].kind == "perplexity"]
    yield from texts or (one for one in asked if one[0].kind != _PROBES)


def _text(task: Task, request: Request) -> AgreementText:
    if request.prompt is not None:
        ids, first = request.prompt, 0
    elif task.kind == "perplexity":
        (piece,) = request.pieces
        ids, first = piece.input, int(piece.context.size) - 1
    else:
        ids, first = request.pieces[0].context, 0
    document = str(request.notes.get("document", request.question.id))
    return AgreementText(
        ids=tuple(int(token) for token in ids),
        first=first,
        document=f"{task.name}\n{document}",
        domain=request.question.domain,
    )

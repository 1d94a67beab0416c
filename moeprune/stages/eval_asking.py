"""Every variant is asked everything: batch by batch, kept as it comes, shared by the processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from moeprune.artefact import parse_json
from moeprune.core.progress import OnProgress, Progress
from moeprune.core.sample import Sample
from moeprune.core.tasks import Task
from moeprune.errors import StoppedError
from moeprune.stages.eval_journal import Answers
from moeprune.stages.eval_model import AskedModel
from moeprune.stages.eval_tasks import Exam
from moeprune.stages.eval_variants import Variant, applied
from moeprune.stages.forward import PROMPTS
from moeprune.stages.measuring import Stop
from moeprune.stages.together import Work

if TYPE_CHECKING:
    from moeprune.evaluate.batching import Room
    from moeprune.evaluate.requests import Request
    from moeprune.observe.decoding import Completion
    from moeprune.observe.domains import Ids

STAGE = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One loaded model, about to be asked.

    Attributes:
        live: the model.
        asked: its files.
        tokenizer: of it.
        exam: what is asked.
        rooms: of one forward pass, for each task of the exam.
        rows: sequences that lm-eval runs side by side.
        answers: that are there.
        work: of this process.
        kept: how many of them there were when the run began.
        stop: asked after each batch.
        on_progress: told of the questions answered, of all variants.
    """

    live: Any
    asked: AskedModel
    tokenizer: Any
    exam: Exam
    rooms: tuple[Room, ...]
    rows: int
    answers: Answers
    kept: int
    work: Work
    stop: Stop
    on_progress: OnProgress

    def variants(
        self, variants: Sequence[Variant]
    ) -> Iterator[tuple[dict[str, str], tuple[Sample, ...]]]:
        """The probe and the answers of each variant, in every process.

        Raises:
            StoppedError: ``stop`` said so.
            MoePruneError: the model fails on a question.
        """
        found = []
        for number, variant in enumerate(variants):
            with applied(variant, self.live, self.asked):
                # Before the questions: in a resumed run it may be all that is left to be run.
                probe = self._probe()
                self._ask(number, variant, total=len(variants))
            found.append(probe)
        told = [(probe, self._gathered(number)) for number, probe in enumerate(found)]
        self._report(total=len(variants), note="")  # the other processes are done, too
        yield from told

    def _probe(self) -> dict[str, str]:
        from moeprune.evaluate.probe import logits_probe
        from moeprune.observe.placed import input_device

        prompts = [_ids(request) for requests in self.exam.requests for request in requests[:8]]
        if not prompts:
            prompts = [self.tokenizer(text)["input_ids"] for text in PROMPTS]
        return logits_probe(self.live, prompts, device=input_device(self.live))

    def _ask(self, number: int, variant: Variant, *, total: int) -> None:
        from moeprune.evaluate.asking import ask, num_batches, writes

        tasks = list(zip(self.exam.tasks, self.exam.requests, self.rooms, strict=True))
        sizes = [
            num_batches(self.live, task, requests, batch_size=room)
            for task, requests, room in tasks
        ]
        note = variant.name if total > 1 else ""

        def done(samples: Sequence[Sample], part: str | None = None) -> None:
            self.answers.add(number, samples, part)
            self._report(total=total, note=note)
            if self._left(total) and self.stop():
                raise self._stopped(total)

        self._report(total=total, note=note)
        *shares, parts = self.work.shares([*sizes, len(self.exam.harness.parts)])
        for (task, requests, room), share in zip(tasks, shares, strict=True):
            kept = self.answers.of(number)
            ask(
                self.live,
                task,
                requests,
                tokenizer=self.tokenizer,
                write=partial(self._write, task) if writes(task) else None,
                batch_size=room,
                holds=share.holds,
                kept={key[1:]: sample for key, sample in kept.items() if key[0] == task.name},
                on_done=done,
            )
        self.exam.harness.ask(
            self.live,
            self.tokenizer,
            self.answers,
            number,
            holds=parts.holds,
            batch_size=self.rows,
            on_done=done,
            on_progress=self.on_progress,
        )

    def _write(self, task: Task, prompts: Sequence[Ids], **how: Any) -> Sequence[Completion]:
        """Lets the model write after prompts that run side by side."""
        from moeprune.observe.decoding import Decoding
        from moeprune.observe.generate import end_tokens, generate

        names = how.pop("names")
        return generate(
            self.live,
            prompts,
            how=Decoding(**how),
            ends=end_tokens(self.live, self.tokenizer),
            batch_tokens=1 << 62,
            tokenizer=self.tokenizer,
            names=names,
        )

    def _report(self, *, total: int, note: str) -> None:
        questions = self.exam.questions * total
        # What was kept, all processes have read; one of them counts it.
        done = questions - self._left(total) - (0 if self.work.speaks else self.kept)
        self.on_progress(Progress(STAGE, done, questions, "questions", note))

    def _left(self, total: int) -> int:
        have = sum(
            len(self.answers.of(number)) + sum(map(len, self.answers.parts(number).values()))
            for number in range(total)
        )
        return self.exam.questions * total - have

    def _stopped(self, total: int) -> StoppedError:
        kept = (
            f"{self.answers.folder} holds them: the same command goes on from there"
            if self.answers.folder is not None
            else "nothing is kept, as no output was named"
        )
        questions = self.exam.questions * total
        done = questions - self._left(total)
        return StoppedError(f"stopped after {done:,} of {questions:,} questions; {kept}.")

    def _gathered(self, number: int) -> tuple[Sample, ...]:
        """The answers of all processes, in the order of the questions."""
        own = {sample.key: sample for sample in self._of_all(self.answers.of(number).values())}
        parts = chain.from_iterable(self.answers.parts(number).values())
        asked_by_lm_eval = self.exam.harness.ordered(self._of_all(parts))
        return (*(own[key] for key in self.exam.keys), *asked_by_lm_eval)

    def _of_all(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Answers of this process, and of the others of the launch."""
        here = list(samples)
        yield from here
        if self.work.sharers > 1:
            text = "\n".join(sample.to_line() for sample in here)
            for values in self.work.crew.gathered(_packed(text.encode())):
                for line in _unpacked(values).decode().split("\n"):
                    if line:
                        yield Sample.from_json(parse_json(line), "an answer of another process")


def rooms(
    batch_size: int | None, live: Any, exam: Exam, *, answers: Answers, work: Work
) -> tuple[Room, ...]:
    """What a forward pass may hold, for each task; the same in all processes and when resumed.

    Args:
        batch_size: as the user says; None: as many sequences as fit.
        live: the model.
        exam: what is asked.
        answers: that are there.
        work: of this process.
    """
    from moeprune.evaluate.asking import writes
    from moeprune.evaluate.batch_size import auto
    from moeprune.evaluate.batching import Room

    if batch_size is not None:
        return (Room.of(batch_size),) * len(exam.tasks)
    tokens = answers.settled("batch tokens")
    if tokens is None:
        found = [
            auto(live, requests, max_new_tokens=task.protocol.max_new_tokens * writes(task)).tokens
            for task, requests in zip(exam.tasks, exam.requests, strict=True)
        ]
        told = work.crew.gathered(np.array(found, np.int64))
        tokens = answers.settle("batch tokens", [int(least) for least in np.min(told, axis=0)])
    return tuple(Room(tokens=least) for least in tokens)


def _ids(request: Request) -> Sequence[int]:
    """What a request has the model read first."""
    ids = request.prompt if request.prompt is not None else request.pieces[0].input
    return [int(token) for token in ids]


def _packed(data: bytes) -> Any:
    """Bytes as the numbers that processes exchange: how many, and then eight to a number."""
    padded = np.frombuffer(data + bytes(-len(data) % 8), "<i8")
    return np.concatenate([np.array([len(data)], np.int64), padded.astype(np.int64)])


def _unpacked(values: Any) -> bytes:
    return bytes(values[1:].astype("<i8").tobytes()[: int(values[0])])

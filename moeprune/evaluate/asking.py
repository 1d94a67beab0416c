"""Asking a model the questions of a task: the one entrance, whatever the kind of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moeprune import plugins
from moeprune.core.sample import Sample
from moeprune.core.tasks import Task
from moeprune.errors import UsageError
from moeprune.evaluate import kinds
from moeprune.evaluate.batching import Room, batches
from moeprune.evaluate.encoding import Encoder, Ids
from moeprune.evaluate.forward import Forward
from moeprune.evaluate.requests import Key, Request
from moeprune.evaluate.scoring import score
from moeprune.evaluate.written import Answer, Completion

Write = Callable[..., Sequence[Completion]]
"""``write(prompts, *, names, max_new_tokens, temperature, stop)``: a completion a prompt."""

OnDone = Callable[[Sequence[Sample]], None]


def writes(task: Task) -> bool:
    """Whether the answers of a task are written, and not scored.

    Raises:
        UsageError: no such kind of task.
    """
    return bool(plugins.load(kinds, task.kind).WRITES)


def requests_of(
    task: Task, *, encoder: Encoder, tokenizer: Any, seeds: Sequence[int] | None = None
) -> tuple[Request, ...]:
    """What a model is given for each question, in the order of questions, then of seeds.

    Args:
        task: to ask.
        encoder: of the model.
        tokenizer: of the model.
        seeds: of the draws, where tokens are drawn; None: the protocol's.

    Raises:
        UsageError: no such kind of task, or a question cannot be asked of this model.
    """
    kind = plugins.load(kinds, task.kind)
    drawn = (task.protocol.seed,) if seeds is None else tuple(seeds)
    if len(set(drawn)) != len(drawn) or not drawn:
        raise UsageError(f"seeds {list(drawn)} must be different ones, at least one.")
    found = tuple(
        request
        for question in task.questions
        for request in kind.requests(
            task, question, encoder=encoder, tokenizer=tokenizer, seeds=drawn
        )
    )
    if not found:
        raise UsageError(f"task {task.name!r}: its texts have no token. Give it longer ones.")
    return found


def num_batches(
    model: Any, task: Task, requests: Sequence[Request], *, batch_size: int | Room | None
) -> int:
    """How many batches :func:`ask` makes of the requests, those that are kept included."""
    return len(_batches(Forward(model), task, requests, Room.of(batch_size)))


def ask(
    model: Any,
    task: Task,
    requests: Sequence[Request],
    *,
    tokenizer: Any,
    write: Write | None = None,
    batch_size: int | Room | None = None,
    holds: Callable[[int], bool] | None = None,
    kept: Mapping[Key, Sample] | None = None,
    on_done: OnDone | None = None,
) -> tuple[Sample, ...]:
    """Ask a model; the answers do not depend on the batch size, nor on the order of requests.

    Args:
        model: a causal language model; it is left as it was.
        task: to which the requests belong.
        requests: from :func:`requests_of`.
        tokenizer: of the model.
        write: lets the model write, where the answers of the task are written.
        batch_size: sequences of one forward pass, or its room; None: as many as 8192 tokens hold.
        holds: whether a batch, by its number, is run by this process; None: all are.
        kept: answers of an earlier run; they are not asked for again.
        on_done: given the answers of each batch.

    Returns:
        An answer a request, in their order; of requests in batches of other processes only where
        they were kept.

    Raises:
        CheckpointError: the model gives numbers that are none, or lacks tokens of the tokenizer.
        UsageError: a batch does not fit the GPU's memory.
    """
    kind = plugins.load(kinds, task.kind)
    forward = Forward(model)
    forward.check_vocabulary(requests)
    room = Room.of(batch_size)
    found: dict[Key, Sample] = dict(kept or {})
    for number, members in enumerate(_batches(forward, task, requests, room)):
        due = [requests[m] for m in members if requests[m].key not in found]
        if not due or (holds is not None and not holds(number)):
            continue
        if kind.WRITES:
            answers: Sequence[Any] = _written(task, due, tokenizer=tokenizer, write=write)
        else:
            answers = score(forward, due, room=room, close=kind.close)
        done = [kind.sample(task, *pair) for pair in zip(due, answers, strict=True)]
        found |= {request.key: sample for request, sample in zip(due, done, strict=True)}
        if on_done is not None:
            on_done(done)
    return tuple(found[request.key] for request in requests if request.key in found)


def _batches(
    forward: Forward, task: Task, requests: Sequence[Request], room: Room
) -> list[list[int]]:
    spare = task.protocol.max_new_tokens if writes(task) else 0
    return list(batches(requests, room, equal_lengths=not forward.pads, spare=spare))


def _written(
    task: Task, requests: Sequence[Request], *, tokenizer: Any, write: Write | None
) -> list[Answer]:
    if write is None:
        raise UsageError(f"task {task.name!r} has answers written, and nothing lets a model write.")
    protocol = task.protocol
    prompts: list[Ids] = [request.prompt for request in requests if request.prompt is not None]
    done = write(
        prompts,
        names=[f"{request.seed}\n{request.question.id}" for request in requests],
        max_new_tokens=protocol.max_new_tokens,
        temperature=protocol.temperature,
        stop=protocol.stop,
    )
    return [Answer.of(one, tokenizer=tokenizer, stop=protocol.stop) for one in done]

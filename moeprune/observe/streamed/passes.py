"""Calibration of a model that streams: batches of all domains, wave by wave."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import cast

import torch

from moeprune import plugins
from moeprune.core.layout import MoeLayout
from moeprune.errors import UsageError
from moeprune.observe import observers
from moeprune.observe.batches import Batch, batches
from moeprune.observe.prefill import Due, Step, reading, untracked
from moeprune.observe.streamed.activations import Activations
from moeprune.observe.streamed.model import StreamedModel
from moeprune.observe.streamed.relay import Relay
from moeprune.observe.streamed.spill import spill
from moeprune.observe.streamed.wave import Keeper, Stage, wave
from moeprune.observe.sums import FoldedSums


@dataclass(frozen=True, slots=True)
class Job:
    """A batch of a wave; ``domain`` is a place among the domains."""

    domain: int
    batch: Batch


def waves_of(due: Sequence[Due], *, batch_tokens: int, positions: int) -> Iterator[list[Job]]:
    """The batches of all domains in their order, in waves of at most that many positions."""
    jobs: list[Job] = []
    size = 0
    for domain, item in enumerate(due):
        own = batches(item.corpus, max_tokens=batch_tokens, share=item.share)
        for batch in islice(own, item.skip, None):
            if jobs and size + batch.ids_BS.size > positions:
                yield jobs
                jobs, size = [], 0
            jobs.append(Job(domain, batch))
            size += batch.ids_BS.size
    if jobs:
        yield jobs


def stages_of(
    streamed: StreamedModel,
    jobs: Sequence[Job],
    sums: Sequence[FoldedSums],
    *,
    layout: MoeLayout,
    memory: int,
    folder: Path | None,
    meters: Sequence[Keeper] = (),
) -> Generator[Stage]:
    """Run one wave, and add to the sums of each job's domain what routers and experts did.

    Close the generator where it is not read to its end; then the sums are of no use.

    Args:
        streamed: the model.
        jobs: the wave.
        sums: of each domain.
        layout: of the checkpoint.
        memory: bytes for what waiting batches hold.
        folder: for a file of what does not fit; None: all fits.
        meters: told when passes stop, before anything else, and go on, after all else.

    Yields:
        After each unit.

    Raises:
        MoePruneError: see :func:`moeprune.observe.prefill.passes`; a weight cannot be read.
    """
    relay = Relay([sums[job.domain] for job in jobs])
    reported = cast(FoldedSums, relay)  # it is used as one
    observer = plugins.load(observers, layout.observer)
    with contextlib.ExitStack() as undo:
        file = None if folder is None else undo.enter_context(spill(folder))
        keepers = (*meters, relay, Activations(memory=memory, spill=file))
        undo.enter_context(
            observer.observing(streamed.model, layers=streamed.layers, sums=reported)
        )
        read = undo.enter_context(reading(streamed.model, observer, layout, loss=relay.loss))
        undo.callback(streamed.weights.free, streamed.rest)
        streamed.weights.load(streamed.rest)
        run = wave(
            [partial(read, job.batch, reported) for job in jobs],
            units=streamed.units,
            store=streamed.weights,
            keepers=keepers,
        )
        undo.enter_context(contextlib.closing(run))
        while (stage := _next(run, loss=relay.loss)) is not None:
            yield stage


def _next(run: Iterator[Stage], *, loss: bool) -> Stage | None:
    try:
        with untracked(loss=loss):
            return next(run, None)
    except torch.OutOfMemoryError as problem:
        raise UsageError(
            "a unit of the model and a batch do not fit the GPU's memory together; give a smaller "
            "--batch-tokens."
        ) from problem


def added(jobs: Sequence[Job]) -> dict[int, Step]:
    """What a wave has added to each of its domains."""
    return {
        domain: Step(
            batches=sum(job.domain == domain for job in jobs),
            tokens=sum(job.batch.num_tokens for job in jobs if job.domain == domain),
        )
        for domain in sorted({job.domain for job in jobs})
    }

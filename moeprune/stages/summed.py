"""From a model and texts to sums: in batches, rounds and processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.core.domain_stats import Array
from moeprune.core.progress import OnProgress
from moeprune.stages.journal import Journal
from moeprune.stages.measuring import Stop, measured
from moeprune.stages.reading import Reading
from moeprune.stages.ready import Ready
from moeprune.stages.together import Work

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus


def summed(
    made: Ready,
    corpora: Sequence[Corpus],
    *,
    stable: float | None,
    loss: float | None,
    seed: int,
    batch_tokens: int | None,
    output: Path | None,
    journal: Journal,
    work: Work,
    stop: Stop,
    on_progress: OnProgress,
    on_story: Callable[[str], None],
) -> tuple[Reading, dict[str, Mapping[str, Array]]]:
    """The sums of every domain, over all processes.

    Args:
        made: the model.
        corpora: the domains.
        stable: overlap of plans from which on no more is read; None: all is read.
        loss: temperature of the loss of which it is measured what it says of each expert; None:
            no loss.
        seed: of the order of documents, where they are read until plans are stable.
        batch_tokens: positions of a batch; None: as many as fit.
        output: of the calibration.
        journal: of it.
        work: of this process.
        stop: asked after each batch.
        on_progress: told of the tokens measured.
        on_story: told how the job is going to be done.

    Returns:
        How the text was read; domain -> field -> sums.

    Raises:
        StoppedError: ``stop`` said so.
        MoePruneError: see :func:`moeprune.observe.prefill.passes`.
    """
    from moeprune.observe.sums import FoldedSums

    reading = Reading.of(made.opened.facts, corpora, stable=stable, seed=seed, journal=journal)
    work.go_on(journal)
    if begun := sum(domain.tokens for domain in journal.domains.values()):
        on_story(f"{journal.path} holds {begun:,} tokens; the run goes on from there.")
    of_loss = {} if loss is None else {"loss": True, "temperature": loss}
    size = made.batch_tokens(
        batch_tokens, corpora, loss=loss is not None, journal=journal, work=work
    )
    common: dict[str, Any] = {"journal": journal, "stop": stop}
    alone = work.crew.launch.world == 1
    arrays = measured(
        reading.rounds,
        passes=made.passes(batch_tokens=size, output=output, on_story=on_story, **common),
        share=work.share(reading.rounds, batch_tokens=size),
        sums=partial(FoldedSums.of, made.opened.layout, part=work.part, **of_loss),
        on_progress=on_progress,
        **common,
        look=None if stable is None else lambda sums: reading.look(work.added(sums)),
        note=reading.note if alone else None,  # it is of all of the sums
    )
    if not alone:
        journal.save()  # another process may fail while this one waits for it
        arrays = work.added(arrays)
    return reading, arrays

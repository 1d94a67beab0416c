"""The passes of a model that is read a layer at a time: wave by wave."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.errors import StoppedError
from moeprune.stages.identify import check_unchanged
from moeprune.stages.journal import Journal
from moeprune.stages.larger import Larger
from moeprune.stages.measuring import Stop
from moeprune.stages.numbers import check_numbers

if TYPE_CHECKING:
    from moeprune.observe.prefill import Due, Step
    from moeprune.observe.streamed.sizing import Sizing


def wave_by_wave(
    model: Larger,
    due: Sequence[Due],
    *,
    batch_tokens: int,
    output: Path | None,
    journal: Journal,
    on_story: Callable[[str], None],
    stop: Stop,
) -> Generator[Mapping[int, Step]]:
    """Add to the sums of all domains; see :func:`moeprune.observe.prefill.one_by_one`.

    Args:
        model: to be read a layer at a time.
        due: the domains.
        batch_tokens: positions of a batch.
        output: what does not fit the memory lies in its folder meanwhile; None: in the system's
            temporary folder.
        journal: of the measuring, for messages.
        on_story: told what it will take.
        stop: asked after each layer.

    Yields:
        After each layer how far the wave has come, and after each wave what it added.

    Raises:
        StoppedError: ``stop`` said so; of the wave in progress nothing is kept.
        UsageError: the memory is too little, or a file cannot be read.
        MoePruneError: a weight is not there, or the model cannot be observed.
    """
    from moeprune.observe.memory import small_caches
    from moeprune.observe.prefill import Step, check_vocabulary
    from moeprune.observe.streamed.passes import added, stages_of, waves_of

    streamed = model.streamed
    for item in due:
        check_vocabulary(streamed.model, item.corpus)
    if not due:
        return
    num_layers = sum(unit.layer for unit in streamed.units)
    numbers = _Numbers(model)
    where = None if output is None else output.parent
    with small_caches(), tempfile.TemporaryDirectory(prefix=".moeprune-", dir=where) as made:
        folder = Path(made)
        sizing = _sized(model, due, batch_tokens, folder)
        on_story(f"{model.why}: {sizing}" if model.why else str(sizing))
        for jobs in waves_of(due, batch_tokens=batch_tokens, positions=sizing.positions):
            tokens = sum(job.batch.num_tokens for job in jobs)
            stages = stages_of(
                streamed,
                jobs,
                [item.sums for item in due],
                layout=model.opened.layout,
                memory=sizing.activations,
                folder=folder if sizing.spills else None,
                meters=(numbers,),
            )
            through = 0
            with closing(stages):
                for stage in stages:
                    through += stage.unit.layer
                    part = min(1.0, 0.99 * through / num_layers)
                    yield {jobs[0].domain: Step(batches=0, tokens=0, within=int(tokens * part))}
                    if stop():
                        raise _stopped(journal)
            yield added(jobs)
    check_unchanged(model.opened)  # it was read until now


class _Numbers:
    """Compares experts with their stored bytes when their layer is read for the first time."""

    def __init__(self, model: Larger) -> None:
        self._model = model
        self._seen: set[str] = set()

    def before(self, waiting: Any) -> None:
        """A pass goes on: what it waited for is in memory."""
        unit = waiting.wants
        if unit is not None and unit.routed and unit.name not in self._seen:
            self._seen.add(unit.name)
            opened = self._model.opened
            check_numbers(opened.index, opened.layout, self._model.streamed.model)

    def after(self, waiting: Any) -> None:
        """Nothing to see."""


def _sized(model: Larger, due: Sequence[Due], batch_tokens: int, folder: Path) -> Sizing:
    from moeprune.observe.streamed.memory import allowed_memory, used_memory
    from moeprune.observe.streamed.probe import probe
    from moeprune.observe.streamed.sizing import check_readable, sized

    base = used_memory()
    check_readable(model.streamed, base=base, allowed=allowed_memory())
    corpora = [item.corpus for item in due]
    probed = probe(model.streamed, corpora, layout=model.opened.layout)
    return sized(
        model.streamed,
        probed,
        corpora,
        memory=model.memory,
        base=max(base, used_memory()),
        batch_tokens=batch_tokens,
        disk_free=shutil.disk_usage(folder).free // 2,
        processes=due[0].share.of,
    )


def _stopped(journal: Journal) -> StoppedError:
    if journal.path is None:
        kept = "nothing is kept, as no output was named"
    elif journal.path.exists():
        kept = f"{journal.path} holds the waves before it: the same command goes on from there"
    else:
        kept = "it was the first, so there is nothing to keep"
    return StoppedError(f"stopped in the middle of a wave, which is given up; {kept}.")

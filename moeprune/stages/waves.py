"""The passes of a model that is read a layer at a time: wave by wave."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
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
    from moeprune.observe.streamed.probe import Probed
    from moeprune.observe.streamed.sizing import Sizing


class Waves:
    """Adds to the sums of all domains; see :func:`moeprune.observe.prefill.one_by_one`.

    Args:
        model: to be read a layer at a time.
        batch_tokens: positions of a batch.
        output: what does not fit the memory lies in its folder meanwhile; None: in the system's
            temporary folder (``TMPDIR``).
        journal: of the measuring, for messages.
        on_story: told what it will take.
        stop: asked before each batch of a layer.
    """

    def __init__(
        self,
        model: Larger,
        *,
        batch_tokens: int,
        output: Path | None,
        journal: Journal,
        on_story: Callable[[str], None],
        stop: Stop,
    ) -> None:
        self._model, self._batch_tokens = model, batch_tokens
        self._folder = Path(tempfile.gettempdir()) if output is None else output.parent
        self._journal, self._on_story, self._stop = journal, on_story, stop
        self._numbers = _Numbers(model)
        self._measure: Measure | None = None

    def __call__(self, due: Sequence[Due]) -> Generator[Mapping[int, Step]]:
        """Measure the batches that are due.

        Yields:
            After each layer how far the wave has come, and after each wave what it added.

        Raises:
            StoppedError: ``stop`` said so; of the wave in progress nothing is kept.
            UsageError: the memory is too little, or a file cannot be read.
            MoePruneError: a weight is not there, or the model cannot be observed.
        """
        from moeprune.observe.batches import batch_sizes
        from moeprune.observe.memory import small_caches
        from moeprune.observe.prefill import check_vocabulary

        sizes: list[int] = []
        for item in due:
            check_vocabulary(self._model.streamed.model, item.corpus)
            own = batch_sizes(item.corpus, max_tokens=self._batch_tokens, share=item.share)
            sizes += own[item.skip :]
        if not sizes:
            return
        with small_caches():
            yield from self._run(due, self._sized(due, sizes))
        check_unchanged(self._model.opened)  # it was read until now

    def _run(self, due: Sequence[Due], sizing: Sizing) -> Generator[Mapping[int, Step]]:
        from moeprune.observe.prefill import Step
        from moeprune.observe.streamed.passes import added, stages_of, waves_of

        streamed = self._model.streamed
        num_layers = sum(unit.layer for unit in streamed.units) * (1 + sizing.back)
        for jobs in waves_of(due, batch_tokens=self._batch_tokens, positions=sizing.positions):
            if any(domain.tokens for domain in self._journal.domains.values()):
                self._journal.keep(now=True)  # the sums are whole between waves only
            tokens = sum(job.batch.num_tokens for job in jobs)
            stages = stages_of(
                streamed,
                jobs,
                [item.sums for item in due],
                layout=self._model.opened.layout,
                memory=sizing.activations,
                folder=self._folder if sizing.spills else None,
                meters=(self._numbers, _Stopping(self._journal, self._stop)),
            )
            through = 0
            with closing(stages):
                for stage in stages:
                    through += stage.unit.layer
                    part = min(1.0, 0.99 * through / num_layers)
                    yield {jobs[0].domain: Step(batches=0, tokens=0, within=int(tokens * part))}
            yield added(jobs)

    def _sized(self, due: Sequence[Due], sizes: Sequence[int]) -> Sizing:
        """The waves; what they are planned by is measured the first time, and told then."""
        from moeprune.observe.streamed.sizing import sized

        first = self._measure is None
        if self._measure is None:
            self._measure = _measure(self._model, due)
        sizing = sized(
            self._model.streamed,
            self._measure.probed,
            sizes,
            memory=self._model.memory,
            allowed=self._model.allowed,
            base=self._measure.base,
            disk_free=shutil.disk_usage(self._folder).free // 2,
        )
        if first:
            why = self._model.why
            self._on_story(f"{why}: {sizing}" if why else str(sizing))
        return sizing


@dataclass(frozen=True, slots=True)
class Measure:
    """What waves are planned by.

    Attributes:
        base: bytes of memory without weights.
        probed: what the first layers took.
    """

    base: int
    probed: Probed


def _measure(model: Larger, due: Sequence[Due]) -> Measure:
    from moeprune.observe.streamed.memory import used_memory
    from moeprune.observe.streamed.probe import probe
    from moeprune.observe.streamed.sizing import check_readable

    base = used_memory()
    check_readable(model.streamed, base=base, allowed=model.allowed)
    corpora = [item.corpus for item in due]
    loss = due[0].sums.loss
    if loss:
        model.streamed.check_head()
    probed = probe(model.streamed, corpora, layout=model.opened.layout, loss=loss)
    return Measure(max(base, used_memory()), probed)


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


class _Stopping:
    """Ends a wave where it stands; a whole one is not given up."""

    def __init__(self, journal: Journal, stop: Stop) -> None:
        self._journal, self._stop = journal, stop

    def before(self, waiting: Any) -> None:
        """A pass is about to go on.

        Raises:
            StoppedError: it is not to.
        """
        if self._stop():
            raise _stopped(self._journal)

    def after(self, waiting: Any) -> None:
        """It has gone on."""


def _stopped(journal: Journal) -> StoppedError:
    if journal.path is None:
        kept = "nothing is kept, as no output was named"
    elif journal.path.exists():
        kept = f"{journal.path} holds the waves before it: the same command goes on from there"
    else:
        kept = "it was the first, so there is nothing to keep"
    return StoppedError(f"stopped in the middle of a wave, which is given up; {kept}.")

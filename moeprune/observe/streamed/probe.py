"""One document through the first layers: what a batch takes, in memory and in time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from moeprune.core.layout import MoeLayout
from moeprune.observe.batches import batches
from moeprune.observe.domains import Corpus
from moeprune.observe.streamed.activations import held_bytes
from moeprune.observe.streamed.memory import Peak, give_back
from moeprune.observe.streamed.model import StreamedModel
from moeprune.observe.streamed.passes import Job, stages_of
from moeprune.observe.streamed.waiting import Pass
from moeprune.observe.sums import FoldedSums


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What was seen.

    Attributes:
        held: bytes a position that a pass holds while it waits.
        inner: bytes a position that it takes beside the weights while it runs.
        layer_seconds: a position, of one MoE layer.
        load_rate: bytes of files a second, made weights of.
        called: names of the units before the first MoE layer, and of it.
    """

    held: float
    inner: float
    layer_seconds: float
    load_rate: float
    called: frozenset[str]


class _Meter:
    """A keeper of passes: the memory of one of them, and the time of its last step."""

    def __init__(self, place: int) -> None:
        self.held, self.inner, self.seconds = 0, 0, 0.0
        self._place = place
        self._peak = Peak()

    def before(self, waiting: Pass) -> None:
        if waiting.place == self._place:
            give_back()  # or what the pass takes would be there already
            self._peak.start()
            self.seconds = -time.perf_counter()

    def after(self, waiting: Pass) -> None:
        if waiting.place == self._place:
            self.seconds += time.perf_counter()
            self.inner = max(self.inner, self._peak.stop())
            if waiting.wants is not None:
                self.held = max(self.held, held_bytes(waiting))


def probe(streamed: StreamedModel, corpora: Sequence[Corpus], *, layout: MoeLayout) -> Probed:
    """Run the longest document up to the end of the first MoE layer.

    Args:
        streamed: the model.
        corpora: documents, at least one in each.
        layout: of the checkpoint.

    Raises:
        MoePruneError: see :func:`~moeprune.observe.streamed.passes.stages_of`.
    """
    ids = max((ids for corpus in corpora for ids in corpus.documents), key=len)
    alone = replace(corpora[0], documents=(ids,), numbers=(0,), starts=(), targets=())
    job = Job(0, next(batches(alone, max_tokens=ids.size)))
    # Twice: the first pass also makes what libraries keep from then on.
    meter = _Meter(1)
    called: set[str] = set()
    before, seconds = streamed.weights.bytes_read, 0.0
    stages = stages_of(
        streamed,
        [job, job],
        [FoldedSums.of(layout)],
        layout=layout,
        memory=1 << 62,
        folder=None,
        meters=(meter,),
    )
    with closing(stages):
        for stage in stages:
            called.add(stage.unit.name)
            seconds += stage.load_seconds
            if stage.unit.routed:
                break
    positions = job.batch.ids_BS.size
    held = max(1, meter.held) / positions
    return Probed(
        held=held,
        # A short document is over before its memory was looked at.
        inner=max(meter.inner / positions, 2 * held),
        layer_seconds=meter.seconds / positions,
        load_rate=(streamed.weights.bytes_read - before) / max(seconds, 1e-9),
        called=frozenset(called),
    )

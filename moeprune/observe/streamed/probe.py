"""One document through the first layers: what a batch takes, in memory and in time.

Where the loss is asked for, the document goes through the first layers, past all others to the head
and back again, so that a layer is also seen as it runs for the second time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from moeprune.core.layout import MoeLayout
from moeprune.observe.batches import batches
from moeprune.observe.domains import Corpus
from moeprune.observe.streamed.activations import held_bytes
from moeprune.observe.streamed.memory import Peak, give_back
from moeprune.observe.streamed.model import StreamedModel
from moeprune.observe.streamed.passes import Job, stages_of
from moeprune.observe.streamed.short_cut import passed_by
from moeprune.observe.streamed.units import Unit
from moeprune.observe.streamed.waiting import Pass
from moeprune.observe.sums import FoldedSums


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What was seen.

    Attributes:
        held: bytes a position that a pass holds while it waits.
        inner: bytes a position that it takes beside the weights while it runs.
        layer_seconds: a position, of one MoE layer; of both its runs, where there are two.
        load_rate: bytes of files a second, made weights of.
        called: names of the units before the first MoE layer, and of it; with those behind the
            layers, where the way is a way back too.
        kept: bytes a position that a pass keeps of each layer for its way back.
        head_inner: bytes a position that it takes beside the weights while the head runs.
        head_seconds: a position, of the head.
    """

    held: float
    inner: float
    layer_seconds: float
    load_rate: float
    called: frozenset[str]
    kept: float = 0.0
    head_inner: float = 0.0
    head_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Step:
    """One pass from a unit to the next."""

    unit: str
    inner: int
    seconds: float
    held: int


class _Meter:
    """A keeper of passes: the steps of one of them."""

    def __init__(self, place: int) -> None:
        self.steps: list[_Step] = []
        self._place = place
        self._peak = Peak()
        self._unit = ""
        self._since = 0.0

    def before(self, waiting: Pass) -> None:
        if waiting.place == self._place:
            give_back()  # or what the pass takes would be there already
            self._peak.start()
            self._unit = "" if waiting.wants is None else waiting.wants.name
            self._since = time.perf_counter()

    def after(self, waiting: Pass) -> None:
        if waiting.place == self._place:
            seconds = time.perf_counter() - self._since
            held = 0 if waiting.wants is None else held_bytes(waiting)
            self.steps.append(_Step(self._unit, self._peak.stop(), seconds, held))


class _Scrap(FoldedSums):
    """Sums of no use: most layers do not report."""

    def end(self) -> None:
        """Close a batch."""


def probe(
    streamed: StreamedModel, corpora: Sequence[Corpus], *, layout: MoeLayout, loss: bool = False
) -> Probed:
    """Run the longest document up to the end of the first MoE layer, and back again for the loss.

    Args:
        streamed: the model.
        corpora: documents, at least one in each.
        layout: of the checkpoint.
        loss: whether the loss is asked for.

    Raises:
        MoePruneError: see :func:`~moeprune.observe.streamed.passes.stages_of`.
    """
    job = _longest(corpora)
    first = next(unit for unit in streamed.units if unit.routed)
    # Twice: the first pass also makes what libraries keep from then on.
    meter = _Meter(1)
    called: set[str] = set()
    before, seconds = streamed.weights.bytes_read, 0.0
    with contextlib.ExitStack() as undo:
        if loss:
            streamed = undo.enter_context(_shortened(streamed, first))
        stages = stages_of(
            streamed,
            [job, job],
            [_Scrap.of(layout, loss=loss)],
            layout=layout,
            memory=1 << 62,
            folder=None,
            meters=(meter,),
        )
        undo.enter_context(closing(stages))
        for stage in stages:
            again = stage.unit.name in called
            called.add(stage.unit.name)
            seconds += stage.load_seconds
            if stage.unit is first and (again or not loss):
                break
    load_rate = (streamed.weights.bytes_read - before) / max(seconds, 1e-9)
    layers = {unit.name for unit in streamed.units if unit.layer}
    seen = _seen(meter.steps, first.name, layers & called, positions=job.batch.ids_BS.size)
    return Probed(load_rate=load_rate, called=frozenset(called), **seen)


def _seen(
    steps: Sequence[_Step], first: str, layers: set[str], *, positions: int
) -> dict[str, float]:
    """What the steps of a pass took; of them, the first MoE layer may come twice."""
    names = [step.unit for step in steps]
    turn = names.index(first) + 1
    head = [step for step in steps[turn:] if step.unit not in layers]
    body = [step for step in steps if step not in head]
    held = max(1, *(step.held for step in steps)) / positions
    kept = 0.0
    if head:
        begin = min(names.index(name) for name in layers)
        kept = max(0, steps[turn - 1].held - steps[begin - 1].held) / len(layers) / positions
        held = max(steps[begin - 1].held / positions, held - kept * len(layers))
    return {
        "held": held,
        "kept": kept,
        # A short document is over before its memory was looked at.
        "inner": max(2 * held, *(step.inner / positions for step in body)),
        "layer_seconds": sum(step.seconds for step in body if step.unit == first) / positions,
        "head_inner": max((step.inner / positions for step in head), default=0.0),
        "head_seconds": sum(step.seconds for step in head) / positions,
    }


def _longest(corpora: Sequence[Corpus]) -> Job:
    """The longest document, with all of its tokens to be read."""
    ids = max((ids for corpus in corpora for ids in corpus.documents), key=len)
    alone = replace(corpora[0], documents=(ids,), numbers=(0,), starts=(), targets=())
    return Job(0, next(batches(alone, max_tokens=ids.size)))


@contextlib.contextmanager
def _shortened(streamed: StreamedModel, first: Unit) -> Iterator[StreamedModel]:
    """The model without the layers behind the first MoE layer."""
    place = streamed.units.index(first)
    later = [unit for unit in streamed.units[place + 1 :] if unit.layer]
    with passed_by([unit.module for unit in later], like=first.module):
        yield replace(streamed, units=tuple(unit for unit in streamed.units if unit not in later))

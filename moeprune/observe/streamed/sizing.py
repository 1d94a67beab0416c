"""How many tokens go through the model at once, given the memory; and what that costs.

A wave reads the model once. So its cost a token falls with its tokens, which all wait in memory, or
in files: then each layer writes and reads what they hold, and that pays only where the memory holds
less than half a layer's bytes of them. What they keep of every layer for their way back is written
and read once, and that pays wherever reading the layers again would be more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from moeprune.errors import UsageError
from moeprune.observe.loss.head import HEAD_ROWS
from moeprune.observe.streamed.model import StreamedModel
from moeprune.observe.streamed.probe import Probed

# Reading may take a tenth of computing. More tokens in a wave gain little, and more are lost when
# the job is stopped.
_READING = 0.1
_STEP = 100_000_000  # a smallest memory is named in steps of it
_PACKED = 0.85  # of the memory for what waits: the rest lies between pieces of other sizes
_MARGIN = 1.05  # of it: what a process has without weights is not the same each time


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The waves of a calibration.

    Attributes:
        memory: bytes that the process may have.
        activations: of these, for what waits.
        positions: of a wave.
        waves: how many.
        wave_bytes: read in each.
        seconds: of all of them, reading and computing.
        reading_seconds: of these, reading.
        spills: whether some of what waits goes to files.
        back: whether each wave goes through the layers twice, forward and back.
    """

    memory: int
    activations: int
    positions: int
    waves: int
    wave_bytes: int
    seconds: float
    reading_seconds: float
    spills: bool
    back: bool = False

    def __str__(self) -> str:
        waves = "1 wave" if self.waves == 1 else f"{self.waves} waves"
        spilled = "; what waits is partly in files" if self.spills else ""
        twice = ", forward and back" if self.back else ""
        return (
            f"the model is read from disk a layer at a time{twice}, in {size(self.memory)} of "
            "memory: "
            f"{waves} of up to {self.positions:,} tokens, {size(self.wave_bytes)} read in each"
            f"{spilled}; about {_time(self.seconds)}, {_time(self.reading_seconds)} of it reading"
        )


def sized(
    streamed: StreamedModel,
    probed: Probed,
    sizes: Sequence[int],
    *,
    memory: int,
    allowed: int,
    base: int,
    disk_free: int,
) -> Sizing:
    """Plan the waves.

    Args:
        streamed: the model.
        probed: what its first layers took.
        sizes: positions of each batch that is to be run, in their order.
        memory: bytes that the process may have.
        allowed: bytes that this machine and its limits leave to it; what is due beyond them, no
            ``--memory`` gives.
        base: bytes that it has without weights.
        disk_free: bytes that what waits may take on disk.

    Raises:
        UsageError: it cannot be done in this memory; the message names one in which it can, if
            there is as much.
    """
    total, batch = sum(sizes), max(sizes)
    back = probed.kept > 0
    layers = [item for item in streamed.units if item.layer]
    kept = probed.kept * len(layers)
    to_file = disk_free >= kept * batch
    due = _due(streamed, probed, batch, base=base, kept=0 if to_file else kept)
    if memory < due.total:
        raise _too_little(memory, allowed, due)
    activations = memory - base - due.weights
    room = _PACKED * activations
    others = [item for item in streamed.units if item.name in probed.called and not item.layer]
    bytes_of = [streamed.weights.bytes_of(item)[1] for item in layers]
    wave_bytes = sum(bytes_of) * (1 + back) + sum(
        streamed.weights.bytes_of(item)[1] for item in others
    )
    read_seconds = wave_bytes / probed.load_rate
    token_seconds = probed.layer_seconds * len(layers) + probed.head_seconds
    wanted = min(total, read_seconds / _READING / max(token_seconds, 1e-12))
    most = room / (probed.held + kept)
    spills = False
    if most < max(wanted, batch) and (activations < sum(bytes_of) / 2 or most < batch) and back:
        spills = True
        most = min(room / probed.held, most + disk_free / kept)
    if most < wanted and activations < due.unit / 2:
        spills = True
        most += disk_free / (probed.held + kept)
    most = max(batch, int(min(wanted, most)))
    waves = num_waves(sizes, most)
    return Sizing(
        memory=memory,
        activations=activations,
        # As many waves, but of like size, rather than a short one at the end.
        positions=min(most, math.ceil(total / waves) + batch),
        waves=waves,
        wave_bytes=wave_bytes,
        seconds=waves * read_seconds + total * token_seconds,
        reading_seconds=waves * read_seconds,
        spills=spills,
        back=back,
    )


@dataclass(frozen=True, slots=True)
class _Due:
    """Memory that cannot be done without.

    Attributes:
        total: bytes.
        weights: of these, for a unit, and what a batch takes while it runs.
        unit: bytes of the largest unit.
        takes: what needs so much, in words.
    """

    total: int
    weights: int
    unit: int
    takes: str


def _due(streamed: StreamedModel, probed: Probed, batch: int, *, base: int, kept: float) -> _Due:
    """What the largest batch takes.

    Args:
        streamed: the model.
        probed: what its first layers took.
        batch: positions.
        base: bytes without weights.
        kept: bytes a position of all layers, where no file holds them.
    """
    unit, reading = streamed.largest(head=False)
    weights = max(reading, math.ceil(unit + probed.inner * batch))
    held = (probed.held + kept) * batch
    what, most = "layer", reading
    if probed.kept:
        head, reading_head = streamed.largest(head=True)
        ends = max(reading_head, math.ceil(head + probed.head_inner * min(batch, HEAD_ROWS)))
        if ends > weights:
            what, most, weights = "head", ends, ends
    takes = (
        f"the {'largest layer' if what == 'layer' else 'head'} takes {size(most)} while it is "
        f"{'read' if what == 'layer' else 'there'}, and a batch of {batch:,} tokens "
        f"{size(math.ceil(held + probed.inner * batch))}"
    )
    return _Due(math.ceil(base + weights + held / _PACKED), weights, unit, takes)


def _too_little(memory: int, allowed: int, due: _Due) -> UsageError:
    if enough(due.total) > allowed:
        return UsageError(
            f"{due.takes}; with the program that is {size(due.total)}, and there are "
            f"{size(allowed)} here. Free memory, raise its limit, give a smaller --batch-tokens, "
            "or take a larger machine."
        )
    return UsageError(
        f"{size(memory)} of memory is too little: {due.takes}. Give --memory "
        f"{enough(due.total) / 1e9:.1f}GB, or a smaller --batch-tokens."
    )


def num_waves(sizes: Sequence[int], positions: int) -> int:
    """Waves that batches of these sizes make, see :func:`~.passes.waves_of`."""
    waves, filled = 1, 0
    for batch in sizes:
        if filled and filled + batch > positions:
            waves, filled = waves + 1, 0
        filled += batch
    return waves


def check_readable(streamed: StreamedModel, *, base: int, allowed: int) -> None:
    """Check that this machine can hold the largest layer while it is read.

    Raises:
        UsageError: it cannot, whatever ``--memory`` says.
    """
    _, reading = streamed.largest(head=False)
    if base + reading > allowed:
        raise UsageError(
            f"the largest layer takes {size(reading)} while it is read, beside {size(base)} for "
            f"the program; there are {size(allowed)} here. Free memory, raise its limit, or take a "
            "larger machine."
        )


def enough(due: int) -> int:
    """A memory that is named as sufficient, where ``due`` bytes just are."""
    return math.ceil(due * _MARGIN / _STEP) * _STEP


def size(num_bytes: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"

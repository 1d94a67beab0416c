"""Many forward passes at once, in step: every unit is loaded once for all of them.

Which pass runs when changes no result: each computes what it would alone, and at every unit they go
through in their own order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from moeprune.observe.streamed.units import Unit
from moeprune.observe.streamed.waiting import Gate, Pass


@dataclass(frozen=True, slots=True)
class Stage:
    """A unit that passes went through.

    Attributes:
        unit: it.
        passes: how many.
        load_seconds: reading it.
        run_seconds: all of them, to the next unit.
    """

    unit: Unit
    passes: int
    load_seconds: float
    run_seconds: float


class Store(Protocol):
    """Where units come from: ``weights.Weights``."""

    def load(self, unit: Unit) -> None:
        """Into memory."""

    def free(self, unit: Unit) -> None:
        """Out of it."""


class Keeper(Protocol):
    """Told when passes stop and go on: ``activations.Activations``, and who adds up the sums."""

    def before(self, waiting: Pass) -> None:
        """A pass is about to go on."""

    def after(self, waiting: Pass) -> None:
        """A pass has stopped at a unit, or ended."""


def wave(
    jobs: Sequence[Callable[[], None]],
    *,
    units: Sequence[Unit],
    store: Store,
    keepers: Sequence[Keeper] = (),
) -> Generator[Stage]:
    """Run all jobs to their end.

    Close the generator (``contextlib.closing``) where it is not read to its end.

    Args:
        jobs: each one or more forward passes of the model that has the units.
        units: of the model.
        store: of their weights.
        keepers: told, in this order, when a pass stops, and when it goes on in the other order.

    Yields:
        After each unit.
    """
    gate = Gate()
    passes = [Pass(place, job) for place, job in enumerate(jobs)]

    def go_on(one: Pass) -> None:
        for keeper in reversed(keepers):
            keeper.before(one)
        one.go_on()
        for keeper in keepers:
            keeper.after(one)

    with contextlib.ExitStack() as undo:
        undo.enter_context(gate.before(units))
        for one in reversed(passes):
            undo.callback(one.give_up)
        for one in passes:
            go_on(one)
        while waiting := [one for one in passes if one.wants is not None]:
            # The one furthest behind, so that passes that take other ways wait for each other.
            unit = min(waiting, key=lambda one: (one.taken, one.place)).wants
            assert unit is not None
            start = time.perf_counter()
            undo_load = contextlib.ExitStack()
            with undo_load:
                undo_load.callback(store.free, unit)
                store.load(unit)
                loaded = time.perf_counter()
                gate.open = unit
                ready = [one for one in waiting if one.wants is unit]
                for one in ready:
                    go_on(one)
                gate.open = None
            yield Stage(unit, len(ready), loaded - start, time.perf_counter() - loaded)

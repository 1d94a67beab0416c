"""Forward passes that wait where a part of the model is not in memory.

Each runs as a greenlet: the model's own Python code, suspended in the middle of a call and resumed
there. So whatever a model hands from layer to layer stays where it is, in the frames of the pass.
All run in one thread, one at a time.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import greenlet
import torch

from moeprune.errors import UnsupportedModelError
from moeprune.observe.streamed.units import Unit


class Pass:
    """One forward pass.

    Attributes:
        place: among the passes of its wave.
        wants: the unit that it waits for, None once it has ended.
        taken: units that it has gone through.
    """

    def __init__(self, place: int, run: Callable[[], None]) -> None:
        self.place, self.taken = place, 0
        self.wants: Unit | None = None
        self._greenlet = greenlet.greenlet(run)
        self._greenlet.gr_context = contextvars.copy_context()
        self._tracked: bool | None = None  # by autograd; of the thread, so each pass brings its own

    @property
    def top(self) -> Any:
        """The innermost frame of a pass that waits."""
        return self._greenlet.gr_frame

    def go_on(self) -> None:
        """Run until the next unit that is not in memory, or to the end."""
        with self._own_tracking():
            self.wants = self._greenlet.switch()
        self.taken += 1

    def give_up(self) -> None:
        """Leave the pass where it stands; its frames are unwound."""
        if self._greenlet:
            with self._own_tracking():
                self._greenlet.throw(greenlet.GreenletExit)

    @contextlib.contextmanager
    def _own_tracking(self) -> Iterator[None]:
        """Whether autograd tracks, as the pass has left it; afterwards as it was here."""
        here = torch.is_grad_enabled()
        if self._tracked is not None:
            torch.set_grad_enabled(self._tracked)
        try:
            yield
        finally:
            self._tracked = torch.is_grad_enabled()
            torch.set_grad_enabled(here)


class Gate:
    """Stops a pass in front of a unit that is not open."""

    def __init__(self) -> None:
        self.open: Unit | None = None

    @contextlib.contextmanager
    def before(self, units: Sequence[Unit]) -> Iterator[None]:
        """Put the gate before every unit inside the block: each module's own forward, no class."""
        with contextlib.ExitStack() as undo:
            for unit in units:
                undo.callback(self._put(unit))
            yield

    def _put(self, unit: Unit) -> Callable[[], None]:
        module = unit.module
        own = module.__dict__.get("forward")
        forward = module.forward

        @functools.wraps(forward)
        def gated(*args: Any, **kwargs: Any) -> Any:
            self._pass(unit)
            return forward(*args, **kwargs)

        def undo() -> None:
            del module.forward
            if own is not None:
                module.forward = own

        module.forward = gated
        return undo

    def _pass(self, unit: Unit) -> None:
        if self.open is unit:
            return
        hub = greenlet.getcurrent().parent
        if hub is None:
            raise UnsupportedModelError(
                f"{unit.name} is not in memory, and is called outside of a forward pass that can "
                "wait for it."
            )
        hub.switch(unit)

"""Decoder layers that can be left out of a forward pass: they return what they returned before.

The model's own forward pass still makes masks, positions and logits, in every family alike; only
the layers' ``forward`` is replaced, on the modules and never on their classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from moeprune.evaluate.states import State, copied


class Replay:
    """The decoder layers of a model, of which the first ones may be left out.

    Attributes:
        layers: in the order in which they run.
        runs: layers run so far.
        called: numbers of the layers that were called in the last pass, in order.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers = tuple(layers)
        self.runs = 0
        self.called: list[int] = []
        self._start = 0
        self._before: State = None
        self._record: Collection[int] = ()
        self._sink: Callable[[int, State], None] = _nowhere

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within the block, the layers do as :meth:`begin` said last."""
        with ExitStack() as stack:
            for number, layer in enumerate(self.layers):
                stack.enter_context(self._replaced(number, layer))
            yield

    def begin(
        self,
        start: int = 0,
        before: State = None,
        *,
        record: Collection[int] = (),
        sink: Callable[[int, State], None] | None = None,
    ) -> None:
        """Say what the next forward pass does.

        Args:
            start: the first layer that runs.
            before: what layer ``start`` − 1 returned, if ``start`` is not 0.
            record: layers whose output is wanted.
            sink: is given a layer's number and its output, which it must copy to keep.
        """
        self._start = start
        # Layers before the last one left out feed layers that do not read: one copy serves all.
        self._before = copied(before)
        self._last = before
        self._record = frozenset(record)
        self._sink = sink or _nowhere
        self.called = []

    @contextmanager
    def _replaced(self, number: int, layer: nn.Module) -> Iterator[None]:
        own = layer.__dict__.get("forward")
        forward = layer.forward

        def replayed(*args: Any, **kwargs: Any) -> Any:
            self.called.append(number)
            if number < self._start:
                return copied(self._last) if number == self._start - 1 else self._before
            output = forward(*args, **kwargs)
            self.runs += 1
            if number in self._record:
                self._sink(number, output)
            return output

        layer.__dict__["forward"] = replayed
        try:
            yield
        finally:
            if own is None:
                del layer.__dict__["forward"]
            else:
                layer.__dict__["forward"] = own


def _nowhere(_number: int, _state: State) -> None:
    """Keep nothing."""

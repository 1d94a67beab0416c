"""Sums of several domains, behind the one object that observers report to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from moeprune.observe.open_batch import OpenBatch
from moeprune.observe.streamed.waiting import Pass
from moeprune.observe.sums import FoldedSums


class Relay:
    """Hands on what is reported to the sums of the pass that runs; a keeper of passes.

    To observers and readers it is a ``FoldedSums``.

    Args:
        sums: of each pass of a wave.
    """

    def __init__(self, sums: Sequence[FoldedSums]) -> None:
        self._sums = tuple(sums)
        self._now = self._sums[0]
        self._open: dict[int, OpenBatch] = {}

    def before(self, waiting: Pass) -> None:
        """Reports are this pass's from now on."""
        self._now = self._sums[waiting.place]
        if waiting.place in self._open:
            self._now.switch(self._open[waiting.place])

    def after(self, waiting: Pass) -> None:
        """Keep the batch that the pass has begun."""
        self._open[waiting.place] = self._now.open_batch

    @property
    def live_T(self) -> Tensor | None:
        """As of ``FoldedSums``, here and below."""
        return self._now.live_T

    def begin(
        self,
        fold_BS: NDArray[np.int64],
        counted_BS: NDArray[np.bool_] | None = None,
        number_B: NDArray[np.int64] | None = None,
    ) -> OpenBatch:
        """Start a batch."""
        return self._now.begin(fold_BS, counted_BS, number_B)

    def live(self, values: Tensor, *, row: int) -> Tensor:
        """Rows that belong to tokens."""
        return self._now.live(values, row=row)

    def add(self, row: int, **seen: Any) -> None:
        """Add one layer's view."""
        self._now.add(row, **seen)

    @property
    def loss(self) -> bool:
        """Whether a loss is asked for; the same of all passes."""
        return self._now.loss

    @property
    def temperature(self) -> float:
        """By which its logits are divided."""
        return self._now.temperature

    @property
    def open_batch(self) -> OpenBatch:
        """The batch whose layers report."""
        return self._now.open_batch

    def add_changes(self, row: int, **seen: Any) -> None:
        """Add what the loss says of one layer's choices."""
        self._now.add_changes(row, **seen)

    def add_loss(self, loss_N: Tensor, document_N: Tensor) -> None:
        """Add the loss of some target tokens."""
        self._now.add_loss(loss_N, document_N)

    def end(self) -> None:
        """Close a batch."""
        self._now.end()

"""What the lines of a forward pass read, what is wanted of them, and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moeprune.evaluate.encoding import Ids
from moeprune.evaluate.requests import Piece


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Want:
    """The scored tokens of a piece in a row.

    Attributes:
        piece: its number.
        start: position whose logits predict the first of them.
        targets: int32 ids.
    """

    piece: int
    start: int
    targets: Ids

    @property
    def places(self) -> range:
        """Positions whose logits are needed."""
        return range(self.start, self.start + int(self.targets.size))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """What one line of a forward pass reads, and what is wanted of it."""

    ids: Ids
    wants: list[Want] = field(default_factory=list)

    @property
    def first(self) -> int:
        """First position whose logits are needed."""
        return min(want.start for want in self.wants)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """Of the scored tokens of a piece, in order.

    Attributes:
        piece: its number.
        logprob: float64, natural logarithms of their probabilities.
        greedy: whether each is the most probable token.
        rounding: float64, how far a batch may have moved each of ``logprob``.
    """

    piece: int
    logprob: NDArray[np.float64]
    greedy: NDArray[np.bool_]
    rounding: NDArray[np.float64]


def shared_rows(pieces: Sequence[Piece]) -> list[Row]:
    """Rows for pieces; those that read the same share one (the letters of a question)."""
    rows: dict[bytes, Row] = {}
    for number, piece in enumerate(pieces):
        ids = piece.input
        row = rows.setdefault(ids.tobytes(), Row(ids=ids))
        start = int(piece.context.size) - 1
        row.wants.append(Want(piece=number, start=start, targets=piece.continuation))
    return list(rows.values())

"""Which questions one forward pass reads: whole questions, the longest first.

The order is that of length, then id and seed, so that the order of a file cannot matter; batches
are numbered, so that several processes can share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moeprune.errors import UsageError
from moeprune.evaluate.requests import Request

LOGITS_BYTES = 1 << 28
"""Bytes of float32 logits held at a time, as long as one sequence has no more."""

DEFAULT_TOKENS = 8192
"""Tokens of a forward pass where nothing is tried: on a CPU more are no faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one forward pass may hold.

    Attributes:
        tokens: positions, padding included; a sequence that is longer runs alone.
        rows: sequences; None: as many as the tokens allow.
    """

    tokens: int = DEFAULT_TOKENS
    rows: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1 or (self.rows is not None and self.rows < 1):
            raise UsageError(
                f"a batch of {self.rows if self.rows is not None else self.tokens} holds nothing; "
                "give at least 1."
            )

    @classmethod
    def of(cls, batch_size: int | Room | None) -> Room:
        """A number of sequences, a room, or None: as many sequences as ``DEFAULT_TOKENS`` allow."""
        if isinstance(batch_size, Room):
            return batch_size
        if batch_size is None:
            return cls()
        return cls(tokens=1 << 62, rows=batch_size)

    def holds(self, rows: int, width: int) -> bool:
        """Whether so many sequences of so many positions fit."""
        return rows * width <= self.tokens and (self.rows is None or rows <= self.rows)


def order(requests: Sequence[Request]) -> list[int]:
    """Numbers of the requests, longest first."""
    return sorted(range(len(requests)), key=lambda row: (-requests[row].size, *requests[row].key))


def batches(
    requests: Sequence[Request], room: Room, *, equal_lengths: bool, spare: int = 0
) -> Iterator[list[int]]:
    """Numbers of the requests of each batch: as many as fit, at least one.

    Args:
        requests: of one task.
        room: of a batch.
        equal_lengths: only requests of one length stand side by side.
        spare: positions that each sequence needs beyond its input: the budget of what is written.
    """
    members: list[int] = []
    rows = width = 0
    for number in order(requests):
        size, more = requests[number].size, requests[number].num_rows
        fits = room.holds(rows + more, max(width, size + spare))
        if members and (not fits or (equal_lengths and size + spare != width)):
            yield members
            members, rows, width = [], 0, 0
        members.append(number)
        rows, width = rows + more, max(width, size + spare)
    if members:
        yield members

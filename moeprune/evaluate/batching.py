"""Which questions one forward pass reads: whole questions, the longest first.

Questions of a domain that begin alike (after the same shots) stand together, so that the beginning
can be read once. The order is that of length, then id and seed, so that the order of a file cannot
matter; batches are numbered, so that several processes can share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from moeprune.errors import UsageError
from moeprune.evaluate.beginnings import common_size, worth
from moeprune.evaluate.requests import Request

LOGITS_BYTES = 1 << 29
"""Bytes of the logits of a pass, as float32, as long as one sequence has no more."""

DEFAULT_TOKENS = 8192
"""Tokens of a forward pass where nothing is tried: on a CPU more are no faster."""

# Questions of a domain that make up batches of their own: fewer would make batches too small.
_LEAST_TOGETHER = 16


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


def clusters(requests: Sequence[Request]) -> list[list[int]]:
    """Numbers of the requests of each domain that begins alike, and of all others; longest first.

    The longest of all stands first: memory that does not suffice shows early.
    """
    domains: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        domains.setdefault(request.question.domain, []).append(number)
    apart: list[list[int]] = []
    others: list[int] = []
    for members in domains.values():
        contexts = [piece.context for number in members for piece in requests[number].pieces]
        alike = len(members) >= _LEAST_TOGETHER and bool(contexts)
        if alike and worth(common_size(contexts), contexts):
            apart.append(members)
        else:
            others += members
    found = [_ordered(requests, members) for members in (*apart, others) if members]
    return sorted(found, key=lambda members: _rank(requests[members[0]]))


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
    for cluster in clusters(requests):
        members: list[int] = []
        rows = width = 0
        for number in cluster:
            size, more = requests[number].size + spare, requests[number].num_rows
            fits = room.holds(rows + more, max(width, size))
            if members and (not fits or (equal_lengths and size != width)):
                yield members
                members, rows, width = [], 0, 0
            members.append(number)
            rows, width = rows + more, max(width, size)
        yield members


def _ordered(requests: Sequence[Request], members: Iterable[int]) -> list[int]:
    return sorted(members, key=lambda number: _rank(requests[number]))


def _rank(request: Request) -> tuple[int, str, int]:
    return (-request.size, *request.key)

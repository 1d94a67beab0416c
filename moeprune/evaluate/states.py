"""Hidden states between decoder layers, kept for the genomes that share them, in bounded memory.

What enters a layer depends on nothing but the batch and the experts removed before that layer. So
states are kept under (the beginning of a genome, batch): every genome that begins so finds them,
whoever computed them, and no state is kept twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from moeprune.core.fitness import Counts

State = Any
"""What a decoder layer returns: a tensor, or tuples and lists of tensors and other values."""


def copied(state: State) -> State:
    """The same with every tensor copied: a layer may write into what it is given."""
    if isinstance(state, torch.Tensor):
        return state.clone()
    if type(state) in (tuple, list):
        return type(state)(copied(each) for each in state)
    return state


def num_bytes(state: State) -> int:
    """Bytes of the tensors in it."""
    if isinstance(state, torch.Tensor):
        return state.nbytes
    if type(state) in (tuple, list):
        return sum(num_bytes(each) for each in state)
    return 0


@dataclass(slots=True)
class _Entry:
    state: State
    nbytes: int
    used: int


_Key = tuple[Counts, int]


class StateCache:
    """States under (beginning of a genome, batch), never more than ``limit`` bytes of them.

    Where they do not fit, the states of genomes that are not retained go first, those that were
    not used for longest; what then still does not fit is not kept and will be computed again.

    Attributes:
        limit: bytes.
        nbytes: bytes held now.
        most: bytes held at most so far.
    """

    def __init__(self, limit: int, *, lengths: Sequence[int]) -> None:
        """Make an empty cache.

        Args:
            limit: bytes.
            lengths: how many rows of a genome lie before each of the layers whose input is kept,
                ascending.
        """
        self.limit = limit
        self.nbytes = 0
        self.most = 0
        self._lengths = tuple(lengths)
        self._retained: set[Counts] = set()
        self._kept: dict[_Key, _Entry] = {}
        self._loose: OrderedDict[_Key, _Entry] = OrderedDict()
        self._now = 0

    def begin(self) -> None:
        """A new genome is evaluated: its own states do not push each other out."""
        self._now += 1

    def deepest(self, counts: Counts, batch: int) -> tuple[int, State] | None:
        """Index of the last of ``lengths`` whose state is there, and it, not to be changed."""
        for index in reversed(range(len(self._lengths))):
            key = (counts[: self._lengths[index]], batch)
            entry = self._kept.get(key)
            if entry is None and (entry := self._loose.get(key)) is not None:
                self._loose.move_to_end(key)
            if entry is not None:
                entry.used = self._now
                return index, entry.state
        return None

    def put(self, counts: Counts, index: int, batch: int, state: State) -> None:
        """Keep what enters the layer of ``lengths[index]``, if it fits; it is copied."""
        key = (counts[: self._lengths[index]], batch)
        if key in self._kept or key in self._loose:
            return
        size = num_bytes(state)
        if not self._make_room(size):
            return
        home = self._kept if key[0] in self._retained else self._loose
        home[key] = _Entry(copied(state), size, self._now)
        self.nbytes += size
        self.most = max(self.most, self.nbytes)

    def retain(self, genomes: Collection[Counts]) -> None:
        """States of these genomes stay as long as they fit; all others may go."""
        self._retained = {counts[:length] for counts in genomes for length in self._lengths}
        for key in [key for key in self._kept if key[0] not in self._retained]:
            self._loose[key] = self._kept.pop(key)
        for key in [key for key in self._loose if key[0] in self._retained]:
            self._kept[key] = self._loose.pop(key)

    def _make_room(self, size: int) -> bool:
        if size > self.limit:
            return False
        while self.nbytes + size > self.limit:
            oldest = next(iter(self._loose), None)
            if oldest is None or self._loose[oldest].used == self._now:
                return False
            self.nbytes -= self._loose.pop(oldest).nbytes
        return True

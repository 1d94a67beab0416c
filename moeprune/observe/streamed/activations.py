"""What waiting passes hold, moved out of the memory where there is not enough of it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from moeprune.observe.streamed.frames import Held, held_of, own_storages, tensors_in
from moeprune.observe.streamed.spill import Spill
from moeprune.observe.streamed.waiting import Pass

_SMALL = 1 << 16  # bytes: not worth a file


@dataclass(slots=True)
class _Moved:
    """Memory of a tensor whose bytes are elsewhere: at ``at`` in the file, or in ``host``.

    With neither, they are where they were; ``place`` is that of the pass.
    """

    place: int
    storage: torch.UntypedStorage
    nbytes: int
    at: int | None = None
    host: torch.UntypedStorage | None = None


class Activations:
    """A keeper of passes (see ``wave``): their tensors stay, or go to a file until they go on.

    What a pass keeps for its way back goes to the file first, the oldest first, and comes back when
    it is asked for. On a GPU all goes to the memory of the host first.

    Args:
        memory: bytes for all waiting passes together.
        spill: for what does not fit; None: there is no such thing.

    Attributes:
        spilled: bytes that were written to files.
    """

    def __init__(self, *, memory: int, spill: Spill | None = None) -> None:
        self.spilled = 0
        self._memory, self._spill = memory, spill
        self._moved: dict[int, list[_Moved]] = {}
        self._in_memory: dict[int, int] = {}
        # By place of the storage, the oldest first; whose bytes are in memory, and all of them.
        self._resting: dict[int, _Moved] = {}
        self._filed: dict[int, _Moved] = {}
        self._resting_bytes = 0
        # The first pass is never moved, but for what depends on its text alone. What it holds and
        # another one holds too belongs to both.
        self._first: set[int] = set()

    def before(self, waiting: Pass) -> None:
        """Give back what the pass held."""
        for item in self._moved.pop(waiting.place, ()):
            self._give_back(item)
        self._in_memory.pop(waiting.place, None)

    def after(self, waiting: Pass) -> None:
        """Move what the pass holds, if need be.

        Raises:
            OutputError: the file cannot hold it.
        """
        place = waiting.place
        if waiting.wants is None:
            self._forget(place)
            return
        held = held_of(waiting.top)
        first = place == 0
        if first:
            self._first = {storage._cdata for storage in held.live + held.resting}
        size = sum(storage.nbytes() for storage in held.live) + self._rest(place, held)
        full = self._make_room(size)
        to_file = full and not first and self._spill is not None
        self._in_memory[place] = 0 if to_file else size
        for storage in held.live:
            mine = not first and storage._cdata not in self._first
            large = storage.nbytes() >= _SMALL
            if mine and large and (to_file or storage.device.type != "cpu"):
                item = _Moved(place, storage, storage.nbytes())
                self._move(item, to_file=to_file)
                self._moved.setdefault(place, []).append(item)

    def _rest(self, place: int, held: Held) -> int:
        """Note what the pass keeps for its way back and may be moved; bytes of what may not."""
        stays = 0
        for kept in held.kept:
            kept.fetch = self._fetch
        for storage in held.resting:
            key, nbytes = storage._cdata, storage.nbytes()
            shared = key not in held.derived and (place == 0 or key in self._first)
            if key in self._resting:
                continue
            if shared or nbytes < _SMALL:
                stays += nbytes
                continue
            item = _Moved(place, storage, nbytes)
            if storage.device.type != "cpu":
                self._move(item, to_file=False)
            self._resting[key] = item
            self._resting_bytes += nbytes
        return stays

    def _make_room(self, size: int) -> bool:
        """Whether so much more does not fit, with all in the file that can be there."""
        waiting = sum(self._in_memory.values()) + size
        while self._spill is not None and waiting + self._resting_bytes > self._memory:
            if not self._resting:
                break
            key = next(iter(self._resting))
            item = self._filed[key] = self._resting.pop(key)
            self._resting_bytes -= item.nbytes
            self._move(item, to_file=True)
        return waiting + self._resting_bytes > self._memory

    def _fetch(self, entry: Any) -> None:
        """An entry of a ``Kept`` is going to be used."""
        for tensor in tensors_in(entry):
            key = tensor.untyped_storage()._cdata
            if key in self._resting:
                item = self._resting.pop(key)
                self._resting_bytes -= item.nbytes
                self._give_back(item)
            elif key in self._filed:
                self._give_back(self._filed.pop(key))

    def _forget(self, place: int) -> None:
        """What a pass kept and never asked for."""
        for items in (self._resting, self._filed):
            for key in [key for key, item in items.items() if item.place == place]:
                item = items.pop(key)
                if items is self._resting:
                    self._resting_bytes -= item.nbytes
                if item.at is not None and self._spill is not None:
                    self._spill.drop(item.at, item.nbytes)

    def _move(self, item: _Moved, *, to_file: bool) -> None:
        storage, host = item.storage, item.host
        if host is None:
            host = storage
            if storage.device.type != "cpu":
                host = torch.UntypedStorage(item.nbytes).copy_(storage)
        if to_file:
            assert self._spill is not None
            item.at = self._spill.put(_bytes_of(host))
            self.spilled += item.nbytes
        item.host = None if to_file else host
        storage.resize_(0)

    def _give_back(self, item: _Moved) -> None:
        storage = item.storage
        if item.host is None and item.at is None:
            return
        storage.resize_(item.nbytes)
        if item.host is not None:
            storage.copy_(item.host)
            return
        assert self._spill is not None and item.at is not None
        on_cpu = storage.device.type == "cpu"
        host = storage if on_cpu else torch.UntypedStorage(item.nbytes)
        self._spill.take(item.at, _bytes_of(host))
        if not on_cpu:
            storage.copy_(host)


def held_bytes(waiting: Pass) -> int:
    """Bytes of tensors that a waiting pass holds."""
    return sum(storage.nbytes() for storage in own_storages(waiting.top))


def _bytes_of(storage: torch.UntypedStorage) -> memoryview:
    # An array of numpy would do, but takes from the memory that it can be given up.
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")

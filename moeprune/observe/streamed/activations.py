"""What waiting passes hold, moved out of the memory where there is not enough of it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from moeprune.observe.streamed.frames import own_storages
from moeprune.observe.streamed.spill import Spill
from moeprune.observe.streamed.waiting import Pass

_SMALL = 1 << 16  # bytes: not worth a file


@dataclass(frozen=True, slots=True)
class _Moved:
    """Memory of a tensor whose bytes are elsewhere while its pass waits: at ``host`` or ``at``."""

    storage: torch.UntypedStorage
    nbytes: int
    at: int | None
    host: torch.UntypedStorage | None


class Activations:
    """A keeper of passes (see ``wave``): their tensors stay, or go to a file until they go on.

    On a GPU they go to the memory of the host first.

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
        # The first pass is never moved. What it holds and another one holds too belongs to both.
        self._first: set[int] = set()

    def before(self, waiting: Pass) -> None:
        """Give back what the pass held."""
        for item in self._moved.pop(waiting.place, ()):
            item.storage.resize_(item.nbytes)
            if item.host is not None:
                item.storage.copy_(item.host)
            else:
                assert self._spill is not None and item.at is not None
                on_cpu = item.storage.device.type == "cpu"
                host = item.storage if on_cpu else torch.UntypedStorage(item.nbytes)
                self._spill.take(item.at, _bytes_of(host))
                if not on_cpu:
                    item.storage.copy_(host)
        self._in_memory.pop(waiting.place, None)

    def after(self, waiting: Pass) -> None:
        """Move what the pass holds, if need be.

        Raises:
            OutputError: the file cannot hold it.
        """
        if waiting.wants is None:
            return
        held = own_storages(waiting.top)
        first = waiting.place == 0
        if first:
            self._first = {storage._cdata for storage in held}
        size = sum(storage.nbytes() for storage in held)
        full = sum(self._in_memory.values()) + size > self._memory
        to_file = full and not first and self._spill is not None
        self._in_memory[waiting.place] = 0 if to_file else size
        for storage in held:
            mine = not first and storage._cdata not in self._first
            large = storage.nbytes() >= _SMALL
            if mine and large and (to_file or storage.device.type != "cpu"):
                self._move(waiting.place, storage, to_file=to_file)

    def _move(self, place: int, storage: torch.UntypedStorage, *, to_file: bool) -> None:
        nbytes = storage.nbytes()
        at = None
        host = storage
        if storage.device.type != "cpu":
            host = torch.UntypedStorage(nbytes).copy_(storage)
        if to_file:
            assert self._spill is not None
            at = self._spill.put(_bytes_of(host))
            self.spilled += nbytes
        storage.resize_(0)
        kept = None if to_file else host
        self._moved.setdefault(place, []).append(_Moved(storage, nbytes, at, kept))


def held_bytes(waiting: Pass) -> int:
    """Bytes of tensors that a waiting pass holds."""
    return sum(storage.nbytes() for storage in own_storages(waiting.top))


def _bytes_of(storage: torch.UntypedStorage) -> memoryview:
    # An array of numpy would do, but takes from the memory that it can be given up.
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")

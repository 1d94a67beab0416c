"""What waiting passes hold, moved out of the memory where there is not enough of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from moeprune.errors import OutputError
from moeprune.observe.streamed.frames import own_storages
from moeprune.observe.streamed.waiting import Pass

_SMALL = 1 << 16  # bytes: not worth a file


@dataclass(frozen=True, slots=True)
class _Moved:
    """Memory of a tensor whose bytes are elsewhere while its pass waits."""

    storage: torch.UntypedStorage
    nbytes: int
    file: Path | None
    host: torch.UntypedStorage | None


class Activations:
    """A keeper of passes (see ``wave``): their tensors stay, or go to a file until they go on.

    On a GPU they go to the memory of the host first.

    Args:
        memory: bytes for all waiting passes together.
        folder: for what does not fit; None: there is no such thing.

    Attributes:
        spilled: bytes that were written to files.
    """

    def __init__(self, *, memory: int, folder: Path | None = None) -> None:
        self.spilled = 0
        self._memory, self._folder = memory, folder
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
                item.storage.copy_(_mapped(item.file, item.nbytes))
        self._in_memory.pop(waiting.place, None)

    def after(self, waiting: Pass) -> None:
        """Move what the pass holds, if need be.

        Raises:
            OutputError: the folder cannot hold it.
        """
        if waiting.wants is None:
            return
        held = own_storages(waiting.top)
        first = waiting.place == 0
        if first:
            self._first = {storage._cdata for storage in held}
        size = sum(storage.nbytes() for storage in held)
        full = sum(self._in_memory.values()) + size > self._memory
        to_file = full and not first and self._folder is not None
        self._in_memory[waiting.place] = 0 if to_file else size
        for number, storage in enumerate(held):
            mine = not first and storage._cdata not in self._first
            large = storage.nbytes() >= _SMALL
            if mine and large and (to_file or storage.device.type != "cpu"):
                self._move(waiting.place, number, storage, to_file=to_file)

    def _move(
        self, place: int, number: int, storage: torch.UntypedStorage, *, to_file: bool
    ) -> None:
        nbytes = storage.nbytes()
        file, host = None, None
        if to_file:
            assert self._folder is not None
            file = self._folder / f"{place}-{number}"
            _mapped(file, nbytes).copy_(storage)
            self.spilled += nbytes
        else:
            host = torch.UntypedStorage(nbytes).copy_(storage)
        storage.resize_(0)
        self._moved.setdefault(place, []).append(_Moved(storage, nbytes, file, host))


def held_bytes(waiting: Pass) -> int:
    """Bytes of tensors that a waiting pass holds."""
    return sum(storage.nbytes() for storage in own_storages(waiting.top))


def _mapped(file: Path | None, nbytes: int) -> torch.UntypedStorage:
    assert file is not None
    try:
        found = torch.UntypedStorage.from_file(str(file), shared=True, nbytes=nbytes)
    except (OSError, RuntimeError) as problem:
        raise OutputError(
            f"{file} cannot hold what waits for its layer: {str(problem).splitlines()[0]}. Give "
            "more --memory, or another TMPDIR."
        ) from problem
    assert isinstance(found, torch.UntypedStorage)
    return found

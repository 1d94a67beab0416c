"""What a pass keeps of each layer until that layer runs again, on the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Kept:
    """A stack: the layer that ran last runs again first.

    Where the model is read a layer at a time, what is kept may lie in a file meanwhile. It is
    looked for in the frames of the pass: one that waits must hold its ``Kept`` in a variable.

    Attributes:
        pinned: whether all of it stays in memory.
        turned: whether the way back has begun; before, the last entry stays in memory too, for what
            comes after the last layer.
        fetch: told of an entry that is going to be used.
    """

    def __init__(self) -> None:
        self.pinned = self.turned = False
        self.fetch: Callable[[Any], None] | None = None
        self._entries: list[Any] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        """The entries, the oldest first; of their tensors some may have no bytes at the moment."""
        return iter(self._entries)

    def push(self, entry: Any) -> None:
        """Keep what a layer needs.

        Args:
            entry: tensors, in any nest of sequences, mappings and dataclasses. Nothing else may
                need their numbers until the entry is asked for again; see :meth:`pin`.
        """
        self._entries.append(entry)

    def pop(self) -> Any:
        """What the last layer needs; it is forgotten here."""
        self.turned = True
        entry = self._entries[-1]
        if self.fetch is not None:
            self.fetch(entry)
        return self._entries.pop()

    def pin(self) -> None:
        """All stays in memory: autograd may need numbers of it where no entry is asked for."""
        self.pinned = True

"""The common beginning of the sequences of a pass, read once: shots before every question.

The model reads the beginning alone and keeps its keys and values; every row goes on from a copy.
Whether a family can is not assumed: the first time, two rows are read both ways, and where any
log-probability differs by more than rounding, or the model's own code fails, beginnings are never
kept.

R rows, S positions.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from moeprune.evaluate.encoding import Ids

LEAST_SAVED = 1024
"""Tokens that must be saved for a beginning to be read on its own, which is a pass more."""

# Of all tokens of a pass, the share that must be saved.
_SHARE = 1 / 3
# One that was kept is used again where it is nearly as long as the longest common one.
_NEARLY = 0.8
# What a model's own code may raise where it does not take up what was kept.
_FAILURES = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
)


def common_size(sequences: Sequence[Ids]) -> int:
    """Tokens that all of them begin with."""
    first = sequences[0]
    size = min(ids.size for ids in sequences)
    for ids in sequences[1:]:
        other = np.flatnonzero(first[:size] != ids[:size])
        size = int(other[0]) if other.size else size
    return size


def worth(size: int, rows: Sequence[Ids]) -> bool:
    """Whether reading ``size`` tokens once saves enough."""
    saved = size * (len(rows) - 1)
    return saved >= LEAST_SAVED and saved >= _SHARE * sum(ids.size for ids in rows)


class Beginnings:
    """What a model keeps of the beginning that was read last.

    Attributes:
        usable: whether the model goes on from what was kept as if it had read it; None: not tried.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        takes = inspect.signature(model.forward).parameters
        names = [name for name in ("cache", "past_key_values") if name in takes]
        self._name = names[0] if names else ""
        self._in_parts = "logits_to_keep" in takes
        self.usable: bool | None = None if names else False
        self._ids: Ids = np.empty(0, np.int32)
        self._kept: Any = None

    def size_for(self, rows: Sequence[Ids], *, most: int) -> int:
        """Tokens of the rows that are better read once; 0: none.

        Args:
            rows: of one pass.
            most: tokens of each that need not give logits.
        """
        if self.usable is False or len(rows) < 2:
            return 0
        common = min(most, common_size(rows))
        mine = self._ids.size
        again = _NEARLY * common <= mine <= common and (self._ids == rows[0][:mine]).all()
        size = mine if mine and again else common
        return size if worth(size, rows) else 0

    def options(self, ids: Ids, rows: int, *, device: torch.device) -> dict[str, Any]:
        """What a forward pass is told to go on from the beginning ``ids`` in every row."""
        if ids.size != self._ids.size or (ids != self._ids).any():
            self._kept = None  # the memory of one at a time
            told: dict[str, Any] = {"use_cache": True}
            if self._in_parts:
                told["logits_to_keep"] = 1
            read = torch.from_numpy(ids[None].astype(np.int64)).to(device)
            output = self._model(input_ids=read, **told)
            found = getattr(output, self._name, None)
            if found is None:
                raise TypeError("the model keeps nothing")
            self._ids, self._kept = ids, found
        mine = copy.deepcopy(self._kept)
        mine.batch_repeat_interleave(rows)
        return {self._name: mine, "use_cache": True}

    def tried(self, same: Callable[[], bool]) -> bool:
        """Whether it is usable; where that is not known, ``same`` finds out.

        Args:
            same: reads rows both ways and compares.
        """
        if self.usable is None:
            try:
                self.usable = same()
            except torch.OutOfMemoryError:
                raise
            except _FAILURES:
                self.usable = False
            if not self.usable:
                self._ids, self._kept = np.empty(0, np.int32), None
        return self.usable

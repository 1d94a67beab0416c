"""Whether the layers of a model may be left out: tried on a few tokens, from every place.

A family whose layers see each other past the hidden states (shared keys and values, sums over all
layers) or run several times a pass gives other logits then. Nothing is assumed of a family; what
is not equal is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from moeprune.core.fitness import Counts
from moeprune.evaluate.passes import Passes, TokenBatch
from moeprune.evaluate.states import State, copied

_DOCUMENTS, _POSITIONS = 2, 48
# What a family's own code may raise when it misses what a layer left behind.
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the check found.

    Attributes:
        depth: layers that one pass runs; a layer that runs twice counts twice.
        reuse: whether layers may be left out.
        in_parts: whether logits may be made in parts.
        reason: why something may not, or "".
    """

    depth: int
    reuse: bool
    in_parts: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Sample:
    ids_BS: NDArray[np.int64]
    mask_BS: NDArray[np.int64]


def check_reuse(
    passes: Passes, batch: TokenBatch, *, counts: Counts, starts: Sequence[int]
) -> Finding:
    """Compare passes from every layer of ``starts`` on with the whole pass, and parts with a whole.

    Logits must be equal bit for bit where two whole passes are; else within four times what two
    whole passes differ by.

    Args:
        passes: of the model.
        batch: a few tokens of it are read.
        counts: a genome whose experts are masked meanwhile.
        starts: the layers that later passes may begin with, none 0.
    """
    trial = _Trial(passes, batch, counts)
    last = len(passes.replay.layers) - 1
    with passes.open():
        called = trial.whole()
        if called != tuple(range(last + 1)):
            twice = next((n for n in called if called.count(n) > 1), None)
            why = f"a pass runs {len(called)} of {last + 1} layers, or in another order"
            if twice is not None:
                why = f"layer {twice} runs more than once a pass"
        else:
            why = trial.reason(lambda: trial.begun_late((*starts, last + 1)))
        if why:
            return Finding(depth=len(called), reuse=False, in_parts=False, reason=why)
        why = "the model's forward pass has no logits_to_keep"
        if passes.in_parts:
            why = trial.reason(lambda: trial.in_parts(last + 1))
    return Finding(depth=len(called), reuse=True, in_parts=not why, reason=why)


class _Trial:
    """Passes over a few tokens, compared with a whole one."""

    def __init__(self, passes: Passes, batch: TokenBatch, counts: Counts) -> None:
        ids_BS = batch.ids_BS[:_DOCUMENTS, :_POSITIONS]
        mask_BS = np.ascontiguousarray(batch.mask_BS[:_DOCUMENTS, :_POSITIONS])
        self._sample = _Sample(ids_BS, mask_BS)
        self._passes = passes
        self._counts = counts
        self._states: dict[int, State] = {}
        self._plain = torch.empty(0)
        self._noise = 0.0

    def whole(self) -> tuple[int, ...]:
        """Two whole passes; the layers that one calls, in order."""

        def keep(number: int, state: State) -> None:
            self._states[number] = copied(state)

        replay = self._passes.replay
        self._passes.mask(self._counts, start=0)
        replay.begin()
        self._plain = self._passes.raw_logits(self._sample, None)
        called = tuple(replay.called)
        replay.begin(record=range(len(replay.layers)), sink=keep)
        self._noise = 4 * _distance(self._plain, self._passes.raw_logits(self._sample, None))
        return called

    def begun_late(self, starts: Sequence[int]) -> str:
        """What is wrong when a pass begins with one of the layers, or ""."""
        for start in starts:
            apart = _distance(self._plain, self._from(start, None))
            if not apart <= self._noise:
                return (
                    f"logits differ by {apart:.2g} when the pass begins with layer {start}: "
                    "layers of this family share more than hidden states"
                )
        return ""

    def in_parts(self, end: int) -> str:
        """What is wrong when only the logits of some positions are made, or ""."""
        middle = (self._plain.shape[1] + 1) // 2
        # Matrix products of other shapes round otherwise.
        scale = max(1.0, float(self._plain.abs().max()))
        allowed = 16 * torch.finfo(self._plain.dtype).eps * scale + self._noise
        apart = _distance(self._plain[:, :middle], self._from(end, (0, middle)))
        return "" if apart <= allowed else f"logits differ by {apart:.2g} when made in parts"

    def reason(self, compare: Callable[[], str]) -> str:
        """What a comparison says; or how the model's own code failed in it."""
        try:
            return compare()
        except _FAILURES as problem:
            self._passes.drop_masks()
            first = (str(problem).splitlines() or [type(problem).__name__])[0]
            return f"a pass without its first layers fails: {first[:120]}"

    def _from(self, start: int, span: tuple[int, int] | None) -> torch.Tensor:
        self._passes.mask(self._counts, start=start)
        self._passes.replay.begin(start, self._states[start - 1])
        return self._passes.raw_logits(self._sample, span)


def _distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    if mine.shape != theirs.shape:
        return float("inf")
    # Equal infinities (a masked vocabulary entry) differ by nothing, not by NaN.
    apart = torch.where(mine == theirs, 0.0, (mine.float() - theirs.float()).abs())
    return float(apart.nan_to_num(nan=torch.inf).max())

"""Whether the layers of a model may be left out: tried on a few tokens, from every place.

A family whose layers see each other past the hidden states (shared keys and values, sums over all
layers) or run several times a pass gives other logits then. Nothing is assumed of a family; what
is not equal is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprune.core.fitness import Counts
from moeprune.evaluate.passes import Passes, TokenBatch
from moeprune.evaluate.states import State, copied

_DOCUMENTS, _POSITIONS = 2, 48


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
    sample = _Sample(
        batch.ids_BS[:_DOCUMENTS, :_POSITIONS],
        np.ascontiguousarray(batch.mask_BS[:_DOCUMENTS, :_POSITIONS]),
    )
    replay = passes.replay
    states: dict[int, State] = {}
    last = len(replay.layers) - 1

    def keep(number: int, state: State) -> None:
        states[number] = copied(state)

    def from_layer(start: int, span: tuple[int, int] | None = None) -> torch.Tensor:
        passes.mask(counts, start=start)
        replay.begin(start, states[start - 1])
        return passes.raw_logits(sample, span)

    with passes.open():
        passes.mask(counts, start=0)
        replay.begin()
        plain = passes.raw_logits(sample, None)
        called = tuple(replay.called)
        depth = len(called)
        replay.begin(record=range(last + 1), sink=keep)
        noise = _distance(plain, passes.raw_logits(sample, None))
        if called != tuple(range(last + 1)):
            twice = next((n for n in called if called.count(n) > 1), None)
            why = (
                f"layer {twice} runs more than once a pass"
                if twice is not None
                else (f"a pass runs {depth} of {last + 1} layers, or in another order")
            )
            return Finding(depth=depth, reuse=False, in_parts=False, reason=why)
        try:
            for start in (*starts, last + 1):
                apart = _distance(plain, from_layer(start))
                if not apart <= 4 * noise:
                    why = (
                        f"logits differ by {apart:.2g} when the pass begins with layer {start}: "
                        "layers of this family share more than hidden states"
                    )
                    return Finding(depth=depth, reuse=False, in_parts=False, reason=why)
            if not passes.in_parts:
                why = "the model's forward pass has no logits_to_keep"
                return Finding(depth=depth, reuse=True, in_parts=False, reason=why)
            middle = (plain.shape[1] + 1) // 2
            # Matrix products of other shapes round otherwise.
            allowed = 16 * torch.finfo(plain.dtype).eps * max(1.0, float(plain.abs().max()))
            apart = _distance(plain[:, :middle], from_layer(last + 1, (0, middle)))
            if not apart <= allowed + 4 * noise:
                why = f"logits differ by {apart:.2g} when they are made in parts"
                return Finding(depth=depth, reuse=True, in_parts=False, reason=why)
        except (
            RuntimeError,
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            AttributeError,
        ) as problem:
            passes.drop_masks()
            why = f"a pass without its first layers fails: {_one_line(problem)}"
            return Finding(depth=depth, reuse=False, in_parts=False, reason=why)
    return Finding(depth=depth, reuse=True, in_parts=True)


def _distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    if mine.shape != theirs.shape:
        return float("inf")
    # Equal infinities (a masked vocabulary entry) differ by nothing, not by NaN.
    apart = torch.where(mine == theirs, 0.0, (mine.float() - theirs.float()).abs())
    return float(apart.nan_to_num(nan=torch.inf).max())


def _one_line(problem: Any) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:120]

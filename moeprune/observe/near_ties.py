"""Tokens that rounding could have chosen: a batch moves logits in their last bits.

B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from transformers import LogitsProcessor

from moeprune.observe.paired_draws import PairedDraws

# How far the rest of a batch moves a logit, in epsilons times the largest logit; as measured for
# moeprune/evaluate/forward.py.
_UNITS = 128.0


class NearTies(LogitsProcessor):
    """Notes where the two most probable tokens of a row lie within rounding; changes nothing.

    Attributes:
        first_B: tokens that each row had written when that happened first; -1: it did not.
    """

    def __init__(self, draws: PairedDraws | None, *, temperature: float, width: int) -> None:
        """Watch a batch.

        Args:
            draws: what makes drawn tokens of the logits; None: the most probable one is taken.
            temperature: of the draws.
            width: of the prompts, padding included.
        """
        self._draws = draws
        self._temperature = temperature if draws is not None else 1.0
        self._width = width
        self.first_B: torch.Tensor | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """(B, V): the logits, or what draws make of them."""
        scale_B = torch.where(scores.isfinite(), scores, 0.0).abs().amax(-1).clamp(min=1.0)
        chosen = scores if self._draws is None else self._draws(input_ids, scores)
        best_B2 = chosen.topk(2, dim=-1).values
        eps = torch.finfo(scores.dtype).eps
        room_B = 2 * _UNITS * eps * scale_B / self._temperature
        near_B = best_B2[:, 0] - best_B2[:, 1] <= room_B
        step = input_ids.shape[1] - self._width
        if self.first_B is None:
            self.first_B = torch.full_like(near_B, -1, dtype=torch.long)
        self.first_B = torch.where(near_B & (self.first_B < 0), step, self.first_B)
        return chosen

    def within(self, lengths: list[int]) -> list[bool]:
        """Of each row, whether it happened in the first so many tokens."""
        if self.first_B is None:
            return [False] * len(lengths)
        first = self.first_B.tolist()
        return [0 <= at < length for at, length in zip(first, lengths, strict=True)]

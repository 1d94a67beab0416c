"""Tokens drawn with common random numbers: a draw depends on its name and step, on nothing else.

The Gumbel-max trick: argmax of logits/temperature + G, with G = −ln(−ln u) and u uniform for each
token, is a draw from softmax(logits/temperature). Here u is a hash of the name, the step and the
token, so a draw is the same in every batch, on every device; and two models that are asked under
the same name are given the same luck, so that a difference between them is theirs.

B rows, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

# Multipliers and shifts of splitmix64's finalizer (Steele, Lea and Flood 2014), as int64.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def uniforms(name: str, step: int, vocabulary: int, *, device: torch.device) -> torch.Tensor:
    """Uniform numbers in (0, 1), one a token. (V,) float64.

    Args:
        name: of the draw.
        step: tokens written before.
        vocabulary: V.
        device: where they are made; they are the same everywhere.
    """
    key = hashlib.sha256(f"{step}\n{name}".encode()).digest()
    start = int.from_bytes(key[:8], "little", signed=True)
    bits_V = torch.arange(1, vocabulary + 1, device=device) * _STEP + start
    bits_V = (bits_V ^ _shifted(bits_V, 30)) * _FIRST
    bits_V = (bits_V ^ _shifted(bits_V, 27)) * _SECOND
    bits_V = bits_V ^ _shifted(bits_V, 31)
    # 53 bits, and a half so that neither 0 nor 1 comes up.
    return (_shifted(bits_V, 11).double() + 0.5) * 2.0**-53


class PairedDraws(LogitsProcessor):
    """Turns the most probable token into a drawn one."""

    def __init__(self, names: Sequence[str], *, temperature: float, width: int) -> None:
        """Draw for a batch.

        Args:
            names: of the draws of each row.
            temperature: above 0.
            width: of the prompts, padding included.
        """
        self._names = tuple(names)
        self._temperature = temperature
        self._width = width

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """(B, V): logits over the temperature plus noise; the largest is the draw."""
        step = input_ids.shape[1] - self._width
        drawn: Any = torch.empty_like(scores, dtype=torch.float64)
        for row, name in enumerate(self._names):
            uniform_V = uniforms(name, step, scores.shape[1], device=scores.device)
            drawn[row] = scores[row].double() / self._temperature - torch.log(-torch.log(uniform_V))
        return drawn


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """Right by so many bits, with zeros from the left, which int64 alone does not do."""
    return (bits >> by) & ((1 << (64 - by)) - 1)

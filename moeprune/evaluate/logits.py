"""Logits of a live model on a few prompts, and how far two sets of them lie apart.

B prompts of different lengths, S tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_NOISE = 5.0
_MOST = 1e-3


@dataclass(frozen=True, slots=True)
class LogitDifference:
    """How far two models' logits lie apart.

    Attributes:
        largest: largest absolute difference.
        scale: largest absolute finite logit of the reference.
        same_argmax: share of positions with the same most likely token.
        positions: compared positions.
        noise: how far rounding alone moves the reference, 0 where that was not measured.
    """

    largest: float
    scale: float
    same_argmax: float
    positions: int
    noise: float = 0.0

    def within(self, tolerance: float) -> bool:
        """Whether the difference is at most what ``tolerance`` allows."""
        return self.largest <= self.allowed(tolerance)

    def allowed(self, tolerance: float) -> float:
        """The largest difference that passes: ``tolerance``, relative where logits exceed 1.

        Where rounding alone does more, it is five times that; but of a model that turns rounding
        into anything, nothing beyond 1e-3 passes: there the check must not be blind.
        """
        unit = max(1.0, self.scale)
        return max(tolerance * unit, min(_NOISE * self.noise, _MOST * unit))


@torch.inference_mode()
def prompt_logits(model: Any, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Logits at every position of each prompt.

    Args:
        model: a causal language model.
        prompts: token ids, one sequence a prompt; run one by one, so nothing is padded.

    Returns:
        One (S, V) float32 tensor a prompt, on the CPU; of a model that denoises, the logits of the
        canvas that it draws after the prompt.
    """
    logits = []
    for number, ids in enumerate(prompts):
        input_ids_BS = torch.tensor([list(ids)], device=model.device)
        with _seeded(number):
            output = model(input_ids=input_ids_BS, use_cache=False)
        logits.append(output.logits[0].float().cpu())
    return logits


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """What a forward pass draws inside the block is the same each time; nothing else notices."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def compare_logits(
    reference: Sequence[torch.Tensor], other: Sequence[torch.Tensor]
) -> LogitDifference:
    """Compare two results of :func:`prompt_logits` on the same prompts.

    A NaN anywhere counts as an infinite difference.
    """
    largest, scale, same, positions = 0.0, 0.0, 0, 0
    for mine_SV, theirs_SV in zip(reference, other, strict=True):
        difference_SV = (mine_SV - theirs_SV).abs()
        # Equal infinities (a masked vocabulary entry) differ by nothing, not by NaN.
        difference_SV = torch.where(mine_SV == theirs_SV, 0.0, difference_SV)
        largest = max(largest, float(difference_SV.nan_to_num(nan=torch.inf).max()))
        finite = mine_SV[torch.isfinite(mine_SV)]
        scale = max(scale, float(finite.abs().max()) if finite.numel() else 0.0)
        same += int((mine_SV.argmax(-1) == theirs_SV.argmax(-1)).sum())
        positions += mine_SV.shape[0]
    return LogitDifference(largest, scale, same / positions, positions)


def random_prompts(vocabulary: int, *, count: int, length: int, seed: int) -> list[list[int]]:
    """Seeded uniform token ids: prompts for a model without a tokenizer."""
    generator = torch.Generator().manual_seed(seed)
    ids_BS = torch.randint(0, vocabulary, (count, length), generator=generator)
    return [[int(token) for token in row] for row in ids_BS]

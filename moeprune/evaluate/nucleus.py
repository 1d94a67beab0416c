"""The full model's likeliest tokens at every position, and how much of them another one accepts.

Speculative decoding that drafts with q and verifies with p accepts a drafted token with probability
Σ_v min(p(v), q(v)), which is 1 − the total variation distance of the two. Of p only the nucleus is
kept: the likeliest tokens that together hold a share ``top_p`` of its mass. What is dropped is the
most by which a sum over the nucleus falls short of the sum over the vocabulary.

N positions, V vocabulary, M kept tokens of all positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

WORKING_BYTES = 32
"""What finding nuclei or acceptances takes at a time, for each number in the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nuclei:
    """Kept tokens of N positions, position after position.

    Attributes:
        sizes_N: int32, kept tokens of each position.
        ids_M: int16 or int32, the tokens, the likeliest first.
        probs_M: float32, their probabilities in the full distribution: they sum to less than 1.
    """

    sizes_N: torch.Tensor
    ids_M: torch.Tensor
    probs_M: torch.Tensor

    @property
    def mass(self) -> float:
        """Σ over positions of the kept probability: the most that any model can be accepted."""
        return float(self.probs_M.double().sum())

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(each.nbytes for each in (self.sizes_N, self.ids_M, self.probs_M))


@torch.inference_mode()
def nuclei(logits_NV: torch.Tensor, *, top_p: float) -> Nuclei:
    """The smallest set of likeliest tokens with at least ``top_p`` of the mass, at every position.

    Args:
        logits_NV: of the full model, any floating dtype; −inf is no mass.
        top_p: in (0, 1]; 1 keeps every token with a probability above 0 in float32.

    Returns:
        On the CPU.
    """
    assert 0 < top_p <= 1
    logits_NV = logits_NV.float()
    probs_NV = (logits_NV - logits_NV.logsumexp(-1, keepdim=True)).exp_()
    probs_NV, ids_NV = probs_NV.sort(dim=-1, descending=True, stable=True)
    keep_NV = probs_NV > 0
    if top_p < 1:
        # In float64: float32 loses the tail of a large vocabulary. What lies before a token decides
        # whether that token is still needed.
        before_NV = probs_NV.cumsum(-1, dtype=torch.float64)
        before_NV -= probs_NV
        keep_NV &= before_NV < top_p
    small = logits_NV.shape[-1] <= torch.iinfo(torch.int16).max + 1
    return Nuclei(
        sizes_N=keep_NV.sum(-1, dtype=torch.int32).cpu(),
        ids_M=ids_NV[keep_NV].to(torch.int16 if small else torch.int32).cpu(),
        probs_M=probs_NV[keep_NV].cpu(),
    )


@torch.inference_mode()
def accepted(kept: Nuclei, logits_NV: torch.Tensor) -> float:
    """Σ over positions and their kept tokens of min(p, q).

    Args:
        kept: of the full model, p.
        logits_NV: of another model at the same positions, q; its softmax is taken in float32.

    Returns:
        At most ``kept.mass``, and that for the full model's own logits.
    """
    device = logits_NV.device
    logits_NV = logits_NV.float()
    total_N = logits_NV.logsumexp(-1)
    position_M = torch.repeat_interleave(
        torch.arange(kept.sizes_N.numel(), device=device), kept.sizes_N.to(device).long()
    )
    q_M = (logits_NV[position_M, kept.ids_M.to(device).long()] - total_N[position_M]).exp_()
    return float(torch.minimum(kept.probs_M.to(device), q_M).double().sum())

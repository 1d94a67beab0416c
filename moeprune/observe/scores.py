"""From a router's logits to the probabilities that calibration counts.

T tokens, E routed experts.
"""

from __future__ import annotations

import torch
from torch import Tensor


def router_probabilities(logits_TE: Tensor, *, gating: str) -> Tensor:
    """The router's scores, normalised over all experts of the layer. (T, E) float32 or wider.

    Args:
        logits_TE: what the router's projection gives, any float type.
        gating: ``"softmax"``: softmax of all logits, also where the model takes the softmax of the
            chosen ones only; ``"sigmoid"`` and ``"sqrtsoftplus"``: score / Σ scores.
    """
    logits_TE = widened(logits_TE)
    # score / Σ score is the softmax of log score, which neither over- nor underflows.
    if gating == "sigmoid":
        logits_TE = torch.nn.functional.logsigmoid(logits_TE)
    elif gating == "sqrtsoftplus":
        softplus_TE = torch.nn.functional.softplus(logits_TE)
        # log softplus(x) -> x for very negative x, where softplus(x) itself is rounded to 0.
        logits_TE = 0.5 * torch.where(logits_TE < -20, logits_TE, softplus_TE.log())
    else:
        assert gating == "softmax", gating
    return torch.softmax(logits_TE, dim=-1)


def widened(values: Tensor) -> Tensor:
    """At least float32: sums and norms of half-precision numbers need more than their own bits."""
    return values if values.dtype == torch.float64 else values.float()

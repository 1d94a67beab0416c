"""How routers of live models score and choose: by a linear map, and some with a bias on top."""

from __future__ import annotations

import re

import torch
from torch import nn

LINEAR = frozenset(
    {nn.functional.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm}
)
"""The functions by which a router maps hidden states onto all its choices."""

_SELECTION_BIAS = re.compile(
    r"(^|\.)(e_score_correction_bias|expert_bias|router_bias|balancing_biases)$"
)


def is_selection_bias(name: str) -> bool:
    """Whether a parameter or buffer of that name is added to scores for the choice alone."""
    return _SELECTION_BIAS.search(name) is not None

"""What the routers say of a batch's tokens, added to folded sums; and that all of it is finite.

F folds, L MoE layers, E experts of the widest layer, C counted tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprune.core.domain_stats import FOLDS
from moeprune.errors import CheckpointError
from moeprune.observe.open_batch import OpenBatch


def check_finite(batch: OpenBatch, layer: int, probs_CE: Tensor, *chosen: Tensor) -> None:
    """Check what is added: sums never recover from a NaN, and a plan would be made of it.

    Args:
        batch: the tokens.
        layer: for the message.
        probs_CE: of the router.
        *chosen: each with as many numbers of every token.

    Raises:
        CheckpointError: it is not finite.
    """
    if all(bool(torch.isfinite(values.sum()).item()) for values in (probs_CE, *chosen)):
        return
    bad_C = ~torch.isfinite(probs_CE).all(dim=1).cpu()
    for values in chosen:
        bad_C |= ~torch.isfinite(values.reshape(bad_C.numel(), -1)).all(dim=1)
    token = int(bad_C.nonzero()[0])
    raise CheckpointError(
        f"layer {layer}, {batch.document(token)}: the router or an expert gives a number that is "
        "not finite. In float16 numbers overflow: give --dtype bfloat16 or float32; else the "
        "weights are damaged."
    )


def add_routers(
    arrays: Mapping[str, NDArray[Any]], row: int, fold_C: Tensor, probs_CE: Tensor, *, experts: int
) -> None:
    """Add tokens, router mass, entropy and ranks of one layer.

    Args:
        arrays: field -> (F, L, …) sums, which are added to.
        row: the MoE layer.
        fold_C: int64, on the CPU.
        probs_CE: of the routed experts, and of idle ones after them.
        experts: routed ones.
    """
    arrays["tokens"][:, row] += np.bincount(fold_C.numpy(), minlength=FOLDS)
    fold_C = fold_C.to(probs_CE.device)
    member_FC = torch.nn.functional.one_hot(fold_C, FOLDS).T.double()
    entropy_C = torch.special.entr(probs_CE).double().sum(dim=1) / math.log(2)  # bits
    probs_CE = probs_CE[:, :experts]
    arrays["prob_sum"][:, row, :experts] += (member_FC @ probs_CE.double()).cpu().numpy()
    if probs_CE.device.type == "cpu":  # numpy's sort is several times faster than torch's
        ranked_CE = torch.from_numpy(np.sort(probs_CE.numpy(), axis=1)).flip(1)
    else:
        ranked_CE = probs_CE.sort(dim=1, descending=True).values
    ranked_FE = member_FC @ ranked_CE.double()
    arrays["rank_prob_sum"][:, row, :experts] += ranked_FE.cpu().numpy()
    arrays["entropy_sum"][:, row] += (member_FC @ entropy_C).cpu().numpy()
    arrays["entropy_sq_sum"][:, row] += (member_FC @ entropy_C.square()).cpu().numpy()

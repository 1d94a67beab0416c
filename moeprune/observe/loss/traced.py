"""A layer's experts under autograd, and what the loss says of each.

T tokens, K experts chosen, E experts, H hidden size, N tokens of one expert.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from moeprune.observe.layers import MoeLayer
from moeprune.observe.scores import widened
from moeprune.observe.sums import FoldedSums


def traced_run(
    layer: MoeLayer,
    sums: FoldedSums,
    run: Callable[[int, Tensor], Tensor],
    hidden_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
) -> Tensor:
    """The layer's weighted sum over its experts, (T, H), which autograd can follow.

    Once the gradient of the weights is known, the changes of the loss are reported.

    Args:
        layer: its experts run.
        sums: are told.
        run: one expert's network on (N, H) rows.
        hidden_TH: what the experts receive, as the others.
        ids_TK: int64 experts chosen.
        weights_TK: their weights.
    """
    if not weights_TK.requires_grad:
        weights_TK = weights_TK.detach().requires_grad_()

    def report(gradient_TK: Tensor) -> None:
        change_TK = -widened(weights_TK.detach()) * widened(gradient_TK)
        live_TK = sums.live(change_TK, row=layer.row)
        ids = sums.live(ids_TK, row=layer.row)
        sums.add_changes(layer.row, ids_TK=ids, drop_TK=live_TK, cf_TK=live_TK)

    weights_TK.register_hook(report)
    wide = torch.promote_types(hidden_TH.dtype, torch.float32)
    total_TH = torch.zeros(hidden_TH.shape, dtype=wide, device=hidden_TH.device)
    for expert in ids_TK.unique().tolist():
        token_N, place_N = (ids_TK == expert).nonzero(as_tuple=True)
        output_NH = widened(run(expert, hidden_TH[token_N])).reshape(-1, hidden_TH.shape[1])
        weight_N1 = widened(weights_TK[token_N, place_N])[:, None]
        total_TH = total_TH.index_add(0, token_N, output_NH * weight_N1)
    return total_TH.to(hidden_TH.dtype)

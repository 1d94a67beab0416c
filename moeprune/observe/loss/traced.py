"""A layer's experts with a graph, and what the loss says of those that each token chose.

γ_t is the gradient of the loss with respect to what the block adds for token t; then the gradient
with respect to the weight of expert j is u_{t,j} = γ_t · f_j(x_t). So to say what the loss makes of
a choice takes the experts' outputs, and no gradient of any parameter.

T tokens, K experts chosen, X experts that would move in, J = K + X, H hidden size, N tokens of one
expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from moeprune.observe.loss.alternatives import Alternatives
from moeprune.observe.scores import widened

RunExpert = Callable[[int, Tensor], Tensor]
Report = Callable[[Tensor, Tensor], Any]


def traced(
    run: RunExpert,
    hidden_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    others: Alternatives,
    *,
    report: Report,
) -> Tensor:
    """The weighted sum of the experts' outputs, as of ``dispatch.weighted_sum``, with a graph.

    Args:
        run: one expert's network on (N, H) rows.
        hidden_TH: what the experts receive.
        ids_TK: int64 experts chosen.
        weights_TK: their weights.
        others: which experts would move in, and with which weights.
        report: told, once the gradient is known, of the changes of the loss, (T, K) nats each: if
            the expert's part were left out, and if another one moved in.

    Returns:
        (T, H), of the type of ``hidden_TH``.
    """
    wide_TK = widened(weights_TK)
    if not wide_TK.requires_grad:
        wide_TK = wide_TK.detach().requires_grad_()
    total_TH = torch.zeros(
        hidden_TH.shape,
        dtype=torch.promote_types(hidden_TH.dtype, torch.float32),
        device=hidden_TH.device,
    )
    flat_S = wide_TK.reshape(-1)
    for expert, token_N, choice_N in _by_expert(ids_TK):
        output_NH = widened(run(expert, hidden_TH[token_N]))
        total_TH = total_TH.index_add(0, token_N, output_NH * flat_S[choice_N, None])
    extra_TX = torch.zeros(others.extra_TX.shape, dtype=total_TH.dtype, device=hidden_TH.device)

    def gradient(gradient_TH: Tensor) -> None:
        with torch.no_grad():
            flat_X = extra_TX.view(-1)
            for expert, token_N, choice_N in _by_expert(others.extra_TX):
                output_NH = widened(run(expert, hidden_TH.detach()[token_N]))
                flat_X[choice_N] = (output_NH * gradient_TH[token_N]).sum(dim=1)

    def weighed(chosen_TK: Tensor) -> None:
        # After the gradient of the sum: the weights' comes from it.
        with torch.no_grad():
            all_TJ = torch.cat([chosen_TK, extra_TX], dim=1).double()
            drop_TK = -(wide_TK.detach().double() * all_TJ[:, : ids_TK.shape[1]])
            report(drop_TK, (others.change_TKJ.double() @ all_TJ[:, :, None])[:, :, 0])

    total_TH.register_hook(gradient)
    wide_TK.register_hook(weighed)
    return total_TH.to(hidden_TH.dtype)


def _by_expert(ids_TK: Tensor) -> list[tuple[int, Tensor, Tensor]]:
    """Each expert that was chosen, its tokens, and the places of its choices; −1 is none."""
    flat_S = ids_TK.reshape(-1)
    sorted_S, order_S = torch.sort(flat_S, stable=True)
    experts, counts = torch.unique_consecutive(sorted_S, return_counts=True)
    found, start = [], 0
    for expert, count in zip(experts.tolist(), counts.tolist(), strict=True):
        choice_N = order_S[start : start + count]
        if expert >= 0:
            found.append((expert, choice_N // ids_TK.shape[1], choice_N))
        start += count
    return found

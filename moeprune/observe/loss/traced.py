"""A layer's experts under autograd, and what the loss says of those that each token chose.

γ_t is the gradient of the loss with respect to what the experts add for token t; so the gradient
with respect to the weight of expert j is u_{t,j} = γ_t · f_j(x_t). To say what the loss makes of a
choice takes the experts' outputs, and no gradient of any parameter.

T tokens, K experts chosen, X experts that would move in, J = K + X, H hidden size, N tokens of one
expert, R numbers that the router gives beside weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from moeprune.observe.loss.alternatives import Alternatives
from moeprune.observe.products import SPARE_ROWS, round_rows
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
    """The weighted sum of the experts' outputs, as of ``dispatch.weighted_sum``, under autograd.

    Args:
        run: one expert's network on (N, H) rows.
        hidden_TH: what the experts receive.
        ids_TK: int64 experts chosen.
        weights_TK: their weights.
        others: which experts would move in, and with which weights.
        report: told, once the gradient is known, of the changes of the loss, (T, K) nats each: if
            the expert's part were left out, and if it could not be selected.

    Returns:
        (T, H), of the type of ``hidden_TH``.
    """
    if not weights_TK.requires_grad:  # nothing before the layer asks for a gradient, or a table
        weights_TK = weights_TK.detach().requires_grad_()
    # A hook that holds its own tensor is never freed, nor is what that hangs on.
    found = _Found(replace(others, rest=None), report, parts=1 if others.rest is None else 2)
    if others.rest is not None:
        others.rest.register_hook(found.rest)
    sum_TH: Tensor = _Experts.apply(hidden_TH, weights_TK, ids_TK, run, others.extra_TX, found)
    return sum_TH


class _Found:
    """What the loss says of the weights, and of what else changes with them; reported together."""

    def __init__(self, others: Alternatives, report: Report, *, parts: int) -> None:
        self._others, self._report, self._due = others, report, parts
        self._parts: list[tuple[Tensor | None, Tensor]] = []

    def weights(self, weights_TK: Tensor, by_weight_TJ: Tensor) -> None:
        drop_TK = -weights_TK.double() * by_weight_TJ[:, : weights_TK.shape[1]]
        self._add(drop_TK, (self._others.change_TKJ @ by_weight_TJ[:, :, None])[:, :, 0])

    def rest(self, gradient_TR: Tensor) -> None:
        assert self._others.rest_TKR is not None
        if self._others.live_T is not None:
            gradient_TR = gradient_TR[self._others.live_T]
        self._add(None, (self._others.rest_TKR @ gradient_TR.double()[:, :, None])[:, :, 0])

    def _add(self, drop_TK: Tensor | None, cf_TK: Tensor) -> None:
        self._parts.append((drop_TK, cf_TK))
        if len(self._parts) == self._due:
            (drop_TK,) = (drop for drop, _ in self._parts if drop is not None)
            cf_TK = torch.stack([cf for _, cf in self._parts]).sum(dim=0)
            self._parts.clear()
            self._report(drop_TK, cf_TK)


class _Experts(torch.autograd.Function):
    """All experts of a layer. Each has a graph of its own, which its gradient frees."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weights_TK: Tensor,
        ids_TK: Tensor,
        run: RunExpert,
        extra_TX: Tensor,
        found: _Found,
    ) -> Tensor:
        wide = torch.promote_types(hidden_TH.dtype, torch.float32)
        total_TH = torch.zeros(hidden_TH.shape, dtype=wide, device=hidden_TH.device)
        weight_S = widened(weights_TK.reshape(-1))
        graphs = []
        for expert, choice_N, rows_N in _by_expert(ids_TK, hidden_TH):
            with torch.enable_grad():
                leaf_NH = hidden_TH.index_select(0, rows_N).requires_grad_()
                output_NH = run(expert, leaf_NH)
            given_NH = widened(output_NH.detach()[: len(choice_N)])
            added_NH = given_NH * weight_S[choice_N, None]
            total_TH.index_add_(0, rows_N[: len(choice_N)], added_NH)
            graphs.append((choice_N, rows_N, leaf_NH, output_NH))
        ctx.graphs, ctx.run, ctx.found = graphs, run, found
        ctx.save_for_backward(hidden_TH, weights_TK, extra_TX)
        return total_TH.to(hidden_TH.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_TH: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, weights_TK, extra_TX = ctx.saved_tensors
        wide_TH = widened(gradient_TH)
        weight_S = weights_TK.reshape(-1).to(wide_TH.dtype)
        by_weight_S, back_TH = torch.zeros_like(weight_S), torch.zeros_like(wide_TH)
        graphs, ctx.graphs = ctx.graphs, ()
        while graphs:
            choice_N, rows_N, leaf_NH, output_NH = graphs.pop()
            here_NH, count = wide_TH.index_select(0, rows_N), len(choice_N)
            given_NH = widened(output_NH.detach()[:count])
            by_weight_S[choice_N] = torch.linalg.vecdot(here_NH[:count], given_NH)
            # Spare rows have weight 0.
            spare_N1 = pad(weight_S[choice_N], (0, len(rows_N) - count))[:, None]
            (grad_NH,) = torch.autograd.grad(
                output_NH, leaf_NH, here_NH.mul_(spare_N1).to(output_NH.dtype)
            )
            back_TH.index_add_(0, rows_N[:count], widened(grad_NH[:count]))
            del leaf_NH, output_NH, grad_NH
        extra_S = torch.zeros_like(extra_TX, dtype=wide_TH.dtype).reshape(-1)
        for expert, choice_N, rows_N in _by_expert(extra_TX, hidden_TH):
            given_NH = widened(ctx.run(expert, hidden_TH.index_select(0, rows_N)))
            rows_N = rows_N[: len(choice_N)]
            extra_S[choice_N] = torch.linalg.vecdot(
                wide_TH.index_select(0, rows_N), given_NH[: len(choice_N)]
            )
        by_weight_TK = by_weight_S.reshape(weights_TK.shape)
        both_TJ = torch.cat([by_weight_TK, extra_S.reshape(extra_TX.shape)], dim=1)
        ctx.found.weights(weights_TK, both_TJ.double())
        return (
            back_TH.to(hidden_TH.dtype),
            by_weight_TK.to(weights_TK.dtype),
            *(None,) * 4,
        )


def _by_expert(ids_TK: Tensor, like: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each expert that was chosen, the places of its choices, and its tokens and some to spare."""
    sorted_S, order_S = torch.sort(ids_TK.reshape(-1), stable=True)
    rows_S = pad(order_S // max(ids_TK.shape[1], 1), (0, SPARE_ROWS))
    experts, counts = torch.unique_consecutive(sorted_S, return_counts=True)
    start = 0
    for expert, count in zip(experts.tolist(), counts.tolist(), strict=True):
        if expert >= 0:
            end = start + round_rows(count, like)
            yield expert, order_S[start : start + count], rows_S[start:end]
        start += count

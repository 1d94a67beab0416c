"""Observe JetMoE: two expert sets a layer, MLP experts and attention experts.

Both have a router that returns the chosen (token, expert) pairs grouped by expert, and an output
projection that runs on these groups; what it gives for a pair, times the pair's gate, is what the
expert adds to the token. Of an attention expert that is its attention's output for the token.

T tokens, K experts chosen, P = T · K pairs, E experts, H hidden size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moeprune.errors import UnsupportedModelError
from moeprune.observe.layers import MoeLayer
from moeprune.observe.loss.rerun import Reruns
from moeprune.observe.scores import widened
from moeprune.observe.sums import FoldedSums


@contextlib.contextmanager
def observing(model: Any, *, layers: Sequence[MoeLayer], sums: FoldedSums) -> Iterator[None]:
    """Report every expert set of ``model`` to ``sums`` inside the block."""
    routed: dict[int, Any] = {}
    reruns = Reruns(sums)
    names = {id(module): name for name, module in model.named_modules()}
    with contextlib.ExitStack() as undo:
        for layer in layers:
            kept = layer.router.register_forward_hook(_keep(layer, routed))
            undo.callback(kept.remove)
            last = layer.experts.get_submodule("output_linear")
            seen = last.register_forward_hook(_measure(layer, routed, sums, reruns))
            undo.callback(seen.remove)
            block = layer.experts
            if hasattr(block, "map"):  # attention experts: the attention calls them in two parts
                block = model.get_submodule(names[id(block)].rpartition(".")[0])
            undo.enter_context(reruns.on(layer, block))
        yield


def _keep(layer: MoeLayer, routed: dict[int, Any]) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        routed[layer.row] = output

    return hook


def _measure(layer: MoeLayer, routed: dict[int, Any], sums: FoldedSums, reruns: Reruns) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output_PH: Tensor) -> None:
        if reruns.active:
            return
        if layer.row not in routed:
            raise UnsupportedModelError(
                f"layer {layer.layer}: its experts ran, but its router did not run before."
            )
        order_P, _, gates_P, counts_E, logits_TE = routed.pop(layer.row)
        experts = torch.arange(layer.num_experts, device=order_P.device)
        ids_P = experts.repeat_interleave(torch.tensor(counts_E, device=order_P.device))

        def by_token(values_P: Tensor) -> Tensor:
            # Pair p is place order_P[p] of the (T, K) choices, counted row by row.
            back_P = torch.empty_like(values_P).index_copy_(0, order_P, values_P)
            return back_P.reshape(logits_TE.shape[0], -1, *values_P.shape[1:])

        def live(values_P: Tensor) -> Tensor:
            return sums.live(by_token(values_P), row=layer.row)

        if sums.loss and torch.is_grad_enabled():  # the way back of a loss: counted before
            given_PH = output_PH.detach() * gates_P.detach()[:, None]
            reruns.given(layer, by_token(ids_P), widened(by_token(given_PH)))
            return
        sums.add(
            layer.row,
            logits_TE=sums.live(logits_TE, row=layer.row),
            ids_TK=live(ids_P),
            gates_TK=live(gates_P),
            norms_TK=live(torch.linalg.vector_norm(widened(output_PH), dim=-1)),
        )

    return hook

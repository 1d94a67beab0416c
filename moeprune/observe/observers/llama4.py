"""Observe Llama 4, whose experts module is not dispatched through transformers' registry.

Its router score g = sigmoid(logit) scales the *input* of a chosen expert, so what the expert adds
is f_e(g·x), not g·f_e(x). ``norm_sum`` and ``gate_norm_sum`` therefore hold the same number, the
norm of what the expert really adds; ``gate_sum`` holds the score. The experts module runs all E
experts on all tokens, most of them on zeros.

T tokens, K experts chosen, E experts, H hidden size.
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
    """Report every MoE layer of ``model`` to ``sums`` inside the block."""
    routed: dict[int, tuple[Tensor, Tensor]] = {}
    reruns = Reruns(sums)
    with contextlib.ExitStack() as undo:
        for layer in layers:
            kept = layer.router.register_forward_hook(_keep_scores(layer, routed))
            undo.callback(kept.remove)
            seen = layer.experts.register_forward_hook(_measure(layer, routed, sums, reruns))
            undo.callback(seen.remove)
            assert layer.block is not None
            undo.enter_context(reruns.on(layer, layer.block))
        yield


def _keep_scores(layer: MoeLayer, routed: dict[int, tuple[Tensor, Tensor]]) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        scores_TE, logits_TE = output
        routed[layer.row] = (scores_TE, logits_TE)

    return hook


def _measure(
    layer: MoeLayer,
    routed: dict[int, tuple[Tensor, Tensor]],
    sums: FoldedSums,
    reruns: Reruns,
) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output_SH: Tensor) -> None:
        if reruns.active:
            return
        if layer.row not in routed:
            raise UnsupportedModelError(
                f"layer {layer.layer}: its experts ran, but its router did not run before."
            )
        scores_TE, logits_TE = routed.pop(layer.row)
        top_k: int = layer.router.top_k  # type: ignore[assignment]
        # From the logits, as the router itself chooses: a tiny score may be rounded to 0.
        ids_TK = torch.topk(logits_TE, top_k, dim=1).indices
        output_ETH = output_SH.reshape(layer.num_experts, -1, output_SH.shape[-1])
        token_T1 = torch.arange(ids_TK.shape[0], device=ids_TK.device)[:, None]
        given_TKH = widened(output_ETH[ids_TK, token_T1])
        if sums.loss and torch.is_grad_enabled():  # the way back of a loss: counted before
            reruns.given(layer, ids_TK, given_TKH)
            return
        norms_TK = torch.linalg.vector_norm(given_TKH, dim=-1)
        norms_TK = sums.live(norms_TK, row=layer.row)
        sums.add(
            layer.row,
            logits_TE=sums.live(logits_TE, row=layer.row),
            ids_TK=sums.live(ids_TK, row=layer.row),
            gates_TK=sums.live(scores_TE.gather(1, ids_TK), row=layer.row),
            norms_TK=norms_TK,
            gate_norms_TK=norms_TK,
        )

    return hook

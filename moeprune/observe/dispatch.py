"""What observers share: a router's answer is kept until its experts run, one after the other.

T tokens, K experts chosen, E routed experts, H hidden size, N tokens of one expert.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moeprune.errors import UnsupportedModelError
from moeprune.observe.layers import MoeLayer
from moeprune.observe.loss.alternatives import alternatives
from moeprune.observe.loss.asking import Listener
from moeprune.observe.loss.traced import traced
from moeprune.observe.products import SPARE_ROWS, round_rows
from moeprune.observe.scores import widened
from moeprune.observe.sums import FoldedSums


@dataclass(frozen=True, slots=True)
class Routed:
    """What a router said of a batch.

    Attributes:
        logits_TE: of the routed experts and the idle ones after them; before any bias.
        ids_TK: the choice to count, where it is not the one that the experts are given.
    """

    logits_TE: Tensor
    ids_TK: Tensor | None = None


Read = Callable[[MoeLayer, Any], Routed]
RunExpert = Callable[[int, Tensor], Tensor]


class Watch:
    """Hooks on the routers, and the report of a layer once its experts run.

    Args:
        layers: the MoE layers.
        sums: told of each.
        read: from what a router module returns to what it said.
    """

    def __init__(self, layers: Sequence[MoeLayer], sums: FoldedSums, *, read: Read) -> None:
        self._layers, self._sums, self._read = layers, sums, read
        self._routed: dict[int, Routed] = {}  # by router: several layers may share a row
        self._listener = Listener()

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """Keep what the routers return inside the block."""
        with contextlib.ExitStack() as undo:
            for layer in self._layers:
                hook = layer.router.register_forward_hook(self._keep(layer))
                undo.callback(hook.remove)
                if self._sums.loss:
                    undo.enter_context(self._listener.on(layer))
            yield

    def _keep(self, layer: MoeLayer) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._routed[id(layer.router)] = self._read(layer, output)

        return hook

    def run(
        self, layer: MoeLayer, run: RunExpert, hidden_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor
    ) -> Tensor:
        """The layer's weighted sum over its experts, (T, H), reported on the way.

        Raises:
            UnsupportedModelError: the layer's router did not run before.
        """
        if id(layer.router) not in self._routed:
            raise UnsupportedModelError(
                f"layer {layer.layer}: its experts ran, but its router gave no logits before; "
                "this family needs an observer of its own."
            )
        routed = self._routed.pop(id(layer.router))
        if self._sums.loss and torch.is_grad_enabled():
            return self._run_again(layer, run, hidden_TH, ids_TK, weights_TK, routed.ids_TK)

        def live(values: Tensor) -> Tensor:
            return self._sums.live(values, row=layer.row)

        live_ids_TK, live_weights_TK = live(ids_TK), live(weights_TK)
        output_TH, norms_TK = weighted_sum(
            run,
            live(hidden_TH),
            live_ids_TK,
            live_weights_TK,
            num_experts=layer.num_experts + layer.num_idle,
            kind=type(layer.experts).__name__,
            held=layer.held,
        )
        if layer.held is not None:  # numbered from the first that is held; what follows is not
            away_TK = live_ids_TK >= len(layer.held)
            live_ids_TK = torch.where(away_TK, -1, live_ids_TK + layer.held.start)
        self._sums.add(
            layer.row,
            logits_TE=live(routed.logits_TE),
            ids_TK=live_ids_TK if routed.ids_TK is None else live(routed.ids_TK),
            gates_TK=live_weights_TK,
            norms_TK=norms_TK,
        )
        return self._padded(output_TH, hidden_TH)

    def _run_again(
        self,
        layer: MoeLayer,
        run: RunExpert,
        hidden_TH: Tensor,
        ids_TK: Tensor,
        weights_TK: Tensor,
        choice_TK: Tensor | None,
    ) -> Tensor:
        """The second run, under autograd; what the loss says of the choices is reported later."""

        def live(values: Tensor) -> Tensor:
            return self._sums.live(values, row=layer.row)

        asked = self._listener.heard.pop(id(layer.router), None)
        if asked is None:
            raise UnsupportedModelError(
                f"layer {layer.layer}: how its experts were chosen was not heard; this family "
                "cannot be measured with --loss-aware."
            )
        others = alternatives(asked, ids_TK, weights_TK, choice_TK)
        counted_TK = live(ids_TK if choice_TK is None else choice_TK)

        def report(drop_TK: Tensor, cf_TK: Tensor) -> None:
            self._sums.add_changes(layer.row, ids_TK=counted_TK, drop_TK=drop_TK, cf_TK=cf_TK)

        output_TH = traced(
            run,
            live(hidden_TH),
            live(ids_TK),
            live(weights_TK),
            others.of(self._sums.live_T),
            report=report,
        )
        return self._padded(output_TH, hidden_TH)

    def _padded(self, output_TH: Tensor, hidden_TH: Tensor) -> Tensor:
        if self._sums.live_T is None:
            return output_TH
        # Padding gets no expert: what it would compute reaches no token.
        live_T = self._sums.live_T.to(hidden_TH.device)
        return torch.zeros_like(hidden_TH).index_copy(0, live_T, output_TH)


def logits_first(layer: MoeLayer, output: Any) -> Routed:
    """Read a router that returns its logits, alone or first.

    Raises:
        UnsupportedModelError: it returns something else.
    """
    first = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(first, Tensor) or not first.is_floating_point():
        raise UnsupportedModelError(
            f"layer {layer.layer}: the router returns no logits; this family needs an "
            "observer of its own."
        )
    first_TE = first.reshape(-1, first.shape[-1])
    if looks_normalised(first_TE):
        raise UnsupportedModelError(
            f"layer {layer.layer}: the router returns probabilities in place of logits; this "
            "family needs an observer of its own."
        )
    return Routed(first_TE)


def looks_normalised(values_TE: Tensor) -> bool:
    """Whether every row is already a probability distribution; logits are that by no accident."""
    head_TE = values_TE[:64].float()
    return bool(((head_TE >= 0).all() & ((head_TE.sum(dim=-1) - 1).abs() < 1e-2).all()).item())


def weighted_sum(
    run: RunExpert,
    hidden_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    *,
    num_experts: int,
    kind: str,
    held: range | None = None,
) -> tuple[Tensor, Tensor]:
    """Run each expert once on its tokens.

    One expert after the other is on CPUs faster than a grouped product over copied rows, needs
    memory for one expert's tokens only, and adds in an order that is always the same.

    Args:
        run: one expert's network on (N, H) rows; what it returns is written to.
        hidden_TH: what the experts receive.
        ids_TK: int64 experts chosen.
        weights_TK: their weights.
        num_experts: ids that a token may choose.
        kind: of the experts module, for the message.
        held: experts that are here, where others are not: their ids count from the first of them,
            and the id after the last stands for all the others, which give nothing.

    Returns:
        (T, H) the weighted sum of the experts' outputs, added in float32 or wider; (T, K) norms of
        the outputs before weighting.

    Raises:
        UnsupportedModelError: a token chose another id.
    """
    top_k = ids_TK.shape[1]
    sorted_S, order_S = torch.sort(ids_TK.reshape(-1), stable=True)
    if held is not None:
        num_experts = len(held) + 1
    counts = torch.bincount(sorted_S, minlength=num_experts).tolist()
    if len(counts) != num_experts:
        raise UnsupportedModelError(
            f"{kind}: a token chose expert {len(counts) - 1} of {num_experts}; a "
            "family with experts beside the routed ones needs an observer of its own."
        )
    token_S = order_S // top_k
    weight_S = widened(weights_TK.reshape(-1)[order_S])
    wide = torch.promote_types(hidden_TH.dtype, torch.float32)
    norm_S = torch.zeros(token_S.shape, dtype=wide, device=hidden_TH.device)
    total_TH = torch.zeros(hidden_TH.shape, dtype=wide, device=hidden_TH.device)
    rows_S = torch.nn.functional.pad(token_S, (0, SPARE_ROWS))
    start = 0
    for expert, count in enumerate(counts if held is None else counts[:-1]):
        if not count:
            continue
        span = slice(start, start + count)
        # More rows than the expert's own where that is faster; what they give is not used.
        rows_N = rows_S[start : start + round_rows(count, hidden_TH)]
        output_NH = widened(run(expert, hidden_TH.index_select(0, rows_N))[:count])
        torch.linalg.vector_norm(output_NH, dim=-1, out=norm_S[span])
        total_TH.index_add_(0, token_S[span], output_NH.mul_(weight_S[span, None]))
        start += count
    norm_flat = torch.empty_like(norm_S)
    norm_flat[order_S] = norm_S
    return total_TH.to(hidden_TH.dtype), norm_flat.reshape(ids_TK.shape)

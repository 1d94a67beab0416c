"""Folded float64 sums of what the router chose and the experts gave, on the CPU.

F folds, L MoE layers, E routed experts, T tokens of a batch without padding, K experts chosen.
10⁷ float32 additions would lose the rare experts first, and those decide a plan: every sum is
float64 and is added in an order that depends on the batch alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprune.core.domain_stats import FOLDS, fields
from moeprune.core.layout import MoeLayout
from moeprune.errors import StatsError, UnsupportedModelError
from moeprune.observe.loss_sums import LossSums
from moeprune.observe.open_batch import OpenBatch
from moeprune.observe.router_sums import add_routers, check_finite
from moeprune.observe.scores import router_probabilities


class FoldedSums:
    """The sums of one domain while its batches pass.

    Observers call :meth:`add` once a layer and batch, between :meth:`begin` and :meth:`end`. Where
    several batches are on their way, :meth:`switch` says whose layers report next.
    """

    def __init__(
        self,
        *,
        layer_ids: Sequence[int],
        num_experts: Sequence[int],
        gating: str,
        gate_scale: float = 1.0,
        num_idle: int = 0,
        passes: Sequence[int] = (),
        part: int | None = None,
        loss: bool = False,
        temperature: float = 1.0,
    ):
        """Begin at zero.

        Args:
            layer_ids: see ``core.layout.MoeLayout``, as the following.
            num_experts: of each layer.
            gating: of the routers.
            gate_scale: of the blocks.
            num_idle: choices that are no routed expert.
            passes: of the layers.
            part: where processes share the experts, which of them this is. Each counts what its
                own experts do; what the routers say of tokens is the same in all, and the first
                counts it.
            loss: add up what a loss says of each expert, too.
            temperature: by which logits are divided in the loss that says so.
        """
        self._layer_ids = tuple(layer_ids)
        self._num_experts = tuple(num_experts)
        self._gating = gating
        self._gate_scale = gate_scale
        self._num_idle = num_idle
        self._passes = tuple(passes)
        self._part = part
        self.loss, self.temperature = loss, temperature
        shape = {"L": len(layer_ids), "E": max(num_experts)}
        self._keep(
            {
                name: np.zeros((FOLDS, *(shape[axis] for axis in axes)), dtype)
                for name, (axes, dtype, _) in fields(loss=loss).items()
            }
        )
        self._open = OpenBatch()

    @classmethod
    def of(cls, layout: MoeLayout, **own: Any) -> FoldedSums:
        """Empty sums for a model of this layout; ``own``: part, loss and temperature."""
        return cls(
            layer_ids=layout.layer_ids,
            num_experts=layout.num_experts,
            gating=layout.gating,
            gate_scale=layout.gate_scale,
            num_idle=layout.idle_experts,
            passes=layout.passes,
            **own,
        )

    @property
    def live_T(self) -> Tensor | None:
        """Places of the batch's tokens in the flattened batch, None where it has no padding.

        Observers report these alone; of them, what is counted is chosen here.
        """
        return self._open.live_T

    @property
    def open_batch(self) -> OpenBatch:
        """The batch whose layers report."""
        return self._open

    def begin(
        self,
        fold_BS: NDArray[np.int64],
        counted_BS: NDArray[np.bool_] | None = None,
        number_B: NDArray[np.int64] | None = None,
    ) -> OpenBatch:
        """Start a batch; see :meth:`OpenBatch.of` for the arguments."""
        self._open = OpenBatch.of(fold_BS, counted_BS, number_B)
        return self._open

    def switch(self, batch: OpenBatch) -> None:
        """Go on with a batch that was begun before."""
        self._open = batch

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from sums that :meth:`arrays` gave."""
        self._keep({name: arrays[name].copy() for name in fields(loss=self.loss)})

    def _keep(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._loss = None
        if self.loss:
            of = {"layer_ids": self._layer_ids, "num_experts": self._num_experts}
            self._loss = LossSums(arrays, **of, passes=self._passes)

    def live(self, values: Tensor, *, row: int) -> Tensor:
        """Rows of a flattened batch that belong to tokens."""
        if values.shape[0] != self._open.positions:
            raise UnsupportedModelError(
                f"layer {self._layer_ids[row]} saw {values.shape[0]} tokens of a batch of "
                f"{self._open.positions}; a model that drops or adds tokens cannot be observed."
            )
        return values if self.live_T is None else values[self.live_T.to(values.device)]

    def add(
        self,
        row: int,
        *,
        logits_TE: Tensor,
        ids_TK: Tensor,
        gates_TK: Tensor,
        norms_TK: Tensor,
        gate_norms_TK: Tensor | None = None,
    ) -> None:
        """Add one layer's view of the batch's tokens, those that are not counted too.

        Args:
            row: the MoE layer.
            logits_TE: of the router: routed experts, then idle ones.
            ids_TK: int64 experts chosen; of an idle one nothing is counted, nor of −1, which is
                one that another process holds.
            gates_TK: gate weights before the block's own scale.
            norms_TK: ‖f_e‖₂ of each chosen expert's output.
            gate_norms_TK: g·‖f_e‖₂, where it is not the product of gate weight and norm.
        """
        experts = self._num_experts[row]
        due = [ids_TK.shape[0], experts + self._num_idle]
        if list(logits_TE.shape) != due:
            raise UnsupportedModelError(
                f"layer {self._layer_ids[row]}: the router gives {list(logits_TE.shape)}, expected "
                f"logits {due}; this family needs an observer of its own."
            )
        if self._open.counted_C is not None:
            counted_C = self._open.counted_C.to(logits_TE.device)
            logits_TE, ids_TK = logits_TE[counted_C], ids_TK[counted_C]
            gates_TK, norms_TK = gates_TK[counted_C], norms_TK[counted_C]
            gate_norms_TK = None if gate_norms_TK is None else gate_norms_TK[counted_C]
        probs_TE = router_probabilities(logits_TE, gating=self._gating)
        here_TK = ids_TK if self._part is None else ids_TK.clamp(min=0)
        prob_TK = probs_TE.gather(1, here_TK).cpu().double().reshape(-1)
        # A learned factor of an expert may be negative; what counts is how much the expert adds.
        gate = gates_TK.cpu().double().reshape(-1).abs() * self._gate_scale
        norm = norms_TK.cpu().double().reshape(-1)
        gate_norm = gate * norm if gate_norms_TK is None else gate_norms_TK.cpu().double().flatten()
        check_finite(self._open, self._layer_ids[row], probs_TE, gate, norm, gate_norm)
        if not self._part:
            add_routers(self._arrays, row, self._open.fold_C, probs_TE, experts=experts)
        top_k = ids_TK.shape[1]
        # One bin a (fold, expert): bincount adds in the order of the tokens, always the same.
        ids = ids_TK.cpu().reshape(-1)
        bins = self._open.fold_C.repeat_interleave(top_k) * experts + ids
        if self._num_idle or self._part is not None:
            routed = (ids >= 0) & (ids < experts)
            bins, gate, norm = bins[routed], gate[routed], norm[routed]
            gate_norm, prob_TK = gate_norm[routed], prob_TK[routed]
        self._bin("count", row, bins, None)
        self._bin("gate_sum", row, bins, gate)
        self._bin("norm_sum", row, bins, norm)
        self._bin("norm_sq_sum", row, bins, norm * norm)
        self._bin("gate_norm_sum", row, bins, gate_norm)
        self._bin("gate_norm_sq_sum", row, bins, gate_norm * gate_norm)
        self._bin("prob_norm_sum", row, bins, prob_TK * norm)
        largest = torch.zeros(FOLDS * experts).scatter_reduce_(0, bins, norm.float(), "amax")
        kept = self._arrays["norm_max"][:, row, :experts]
        np.maximum(kept, largest.reshape(FOLDS, experts).numpy(), out=kept)
        self._open.seen.add(row)

    def add_changes(self, row: int, *, ids_TK: Tensor, drop_TK: Tensor, cf_TK: Tensor) -> None:
        """Add what the loss says of one layer's choices, of the tokens that are not counted too.

        A layer that runs several times reports as often.

        Args:
            row: the MoE layer.
            ids_TK: int64 experts chosen by each token; of an idle one nothing is counted, nor of
                −1.
            drop_TK: −w_e u_e, nats: first-order change of the loss if what the expert adds were
                left out.
            cf_TK: γ_t · δ_{t,e}, nats: the same if the expert could not be selected.
        """
        assert self._loss is not None
        self._loss.add_changes(self._open, row, ids_TK=ids_TK, drop_TK=drop_TK, cf_TK=cf_TK)

    def add_loss(self, loss_N: Tensor, document_N: Tensor) -> None:
        """Add the loss of some of the batch's target tokens, once of each.

        Args:
            loss_N: nats.
            document_N: int64 line of the batch that the token stands in.
        """
        assert self._loss is not None
        self._loss.add_loss(self._open, loss_N, document_N)

    def end(self) -> None:
        """Close a batch.

        Raises:
            StatsError: a layer reported nothing, so its rows would be zeros that look measured.
        """
        for row, layer in enumerate(self._layer_ids):
            if row not in self._open.seen:
                raise StatsError(
                    f"layer {layer}: its experts or its router never reported in a forward pass; "
                    "this model runs them in a way that cannot be observed."
                )
        if self._loss is not None:
            self._loss.end(self._open)

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Field -> array, as ``core.domain_stats.fields`` names and shapes them."""
        return dict(self._arrays)

    def _bin(self, name: str, row: int, bins: Tensor, weights: Tensor | None) -> None:
        experts = self._num_experts[row]
        sums = torch.bincount(bins, weights=weights, minlength=FOLDS * experts)
        self._arrays[name][:, row, :experts] += sums.reshape(FOLDS, experts).numpy()

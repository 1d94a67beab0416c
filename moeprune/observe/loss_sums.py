"""What a loss says of each expert, summed by fold: over tokens, and over whole documents.

F folds, L MoE layers, E routed experts, T tokens of a batch without padding, K experts chosen,
B documents of a batch, N target tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprune.core.domain_stats import FOLDS, LOSS_FIELDS
from moeprune.errors import CheckpointError, StatsError, UnsupportedModelError
from moeprune.observe.open_batch import OpenBatch


class LossSums:
    """The fields ``core.domain_stats.LOSS_FIELDS`` of one domain while its batches pass.

    Args:
        arrays: field -> sums, which are added to.
        layer_ids: of the MoE layers.
        num_experts: of each.
        passes: how often a forward pass runs each; empty: once.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        *,
        layer_ids: Sequence[int],
        num_experts: Sequence[int],
        passes: Sequence[int] = (),
    ) -> None:
        self._passes = passes or (1,) * len(layer_ids)
        self._arrays = {name: arrays[name] for name in LOSS_FIELDS}
        self._layer_ids, self._num_experts = layer_ids, num_experts

    def add_changes(
        self, batch: OpenBatch, row: int, *, ids_TK: Tensor, drop_TK: Tensor, cf_TK: Tensor
    ) -> None:
        """See :meth:`moeprune.observe.sums.FoldedSums.add_changes`."""
        tokens, top_k = ids_TK.shape
        if tokens != batch.fold_T.numel() or drop_TK.shape != ids_TK.shape != cf_TK.shape:
            raise UnsupportedModelError(
                f"layer {self._layer_ids[row]}: changes of {list(drop_TK.shape)} for experts "
                f"{list(ids_TK.shape)} in a batch of {batch.fold_T.numel()} tokens; this family "
                "cannot be measured with --loss-aware."
            )
        experts = self._num_experts[row]
        ids = ids_TK.detach().cpu().reshape(-1)
        drop, cf = (one.detach().cpu().double().reshape(-1) for one in (drop_TK, cf_TK))
        routed = (ids >= 0) & (ids < experts)
        fold, document = (one.repeat_interleave(top_k) for one in (batch.fold_T, batch.document_T))
        if not routed.all():
            ids, drop, cf, fold, document = (one[routed] for one in (ids, drop, cf, fold, document))
        self._check_finite(batch, row, document, drop, cf)
        bins = fold * experts + ids
        self._bin("fisher_sum", row, bins, drop * drop)
        self._bin("fisher_cf_sum", row, bins, cf * cf)
        self._bin("abs_cf_sum", row, bins, cf.abs())
        bins = document * experts + ids
        size = batch.fold_B.numel() * experts
        found_2BE = torch.stack(
            [torch.bincount(bins, weights=one, minlength=size).double() for one in (drop, cf)]
        ).reshape(2, -1, experts)
        batch.changed.add(row)
        if self._passes[row] == 1:
            self._add_documents(batch, row, found_2BE)
        else:  # what is said of a document is known at the batch's end
            before = batch.change_2BE.get(row)
            batch.change_2BE[row] = found_2BE if before is None else before + found_2BE

    def add_loss(self, batch: OpenBatch, loss_N: Tensor, document_N: Tensor) -> None:
        """See :meth:`moeprune.observe.sums.FoldedSums.add_loss`."""
        loss = loss_N.detach().cpu().double()
        document = document_N.cpu()
        if not torch.isfinite(loss.sum()):
            bad = int(document[int((~torch.isfinite(loss)).nonzero()[0])])
            raise CheckpointError(
                f"{batch.named(bad)}: the loss is not finite. In float16 numbers overflow: give "
                "--dtype bfloat16 or float32; else the weights are damaged."
            )
        fold = batch.fold_B[document]
        sums = torch.bincount(fold, weights=loss, minlength=FOLDS)
        self._arrays["loss_sum"] += sums.numpy()
        self._arrays["loss_tokens"] += torch.bincount(fold, minlength=FOLDS).numpy()
        batch.targets += loss.numel()

    def end(self, batch: OpenBatch) -> None:
        """Add up what is known of whole documents.

        Raises:
            StatsError: a layer did not report though there was a loss.
        """
        for row, layer in enumerate(self._layer_ids):
            if batch.targets and row not in batch.changed:
                raise StatsError(
                    f"layer {layer}: the loss says nothing of its experts; this model runs them in "
                    "a way that --loss-aware cannot follow."
                )
            if row in batch.change_2BE:
                self._add_documents(batch, row, batch.change_2BE.pop(row))

    def _add_documents(self, batch: OpenBatch, row: int, change_2BE: Tensor) -> None:
        member_FB = torch.nn.functional.one_hot(batch.fold_B, FOLDS).T.double()
        drop_BE, cf_BE = change_2BE
        for name, values_BE in {
            "drop_change_sum": drop_BE,
            "drop_change_sq_sum": drop_BE * drop_BE,
            "cf_change_sum": cf_BE,
            "cf_change_sq_sum": cf_BE * cf_BE,
            "cf_change_abs_sum": cf_BE.abs(),
        }.items():
            found_FE = (member_FB @ values_BE).numpy()
            self._arrays[name][:, row, : found_FE.shape[1]] += found_FE

    def _check_finite(self, batch: OpenBatch, row: int, document: Tensor, *changes: Tensor) -> None:
        """Sums never recover from a NaN, and a plan would be made of it."""
        for values in changes:
            if not torch.isfinite(values.sum()):
                bad = int(document[int((~torch.isfinite(values)).nonzero()[0])])
                raise CheckpointError(
                    f"layer {self._layer_ids[row]}, {batch.named(bad)}: the gradient of the loss "
                    "is not finite. In float16 numbers overflow: give --dtype bfloat16 or float32; "
                    "else the weights are damaged."
                )

    def _bin(self, name: str, row: int, bins: Tensor, weights: Tensor) -> None:
        experts = self._num_experts[row]
        sums = torch.bincount(bins, weights=weights, minlength=FOLDS * experts)
        self._arrays[name][:, row, :experts] += sums.reshape(FOLDS, experts).numpy()

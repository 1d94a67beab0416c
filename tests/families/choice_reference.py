"""What a choice is worth to the loss: the block really run without an expert, and plain autograd.

A block is run again under the mask that exports are checked against, an expert at a time; what it
then gives less what it gave is δ. γ is plain autograd's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from loss_reference import loss_of
from torch import Tensor, nn

from moeprune.core.layout import MoeLayout
from moeprune.observe.batches import Batch
from moeprune.observe.layers import MoeLayer, moe_layers
from moeprune.observe.loss.nests import tensors
from moeprune.observe.sums import FoldedSums
from moeprune.routing.mask import masked_experts

Said = dict[int, list[tuple[Tensor, Tensor, Tensor]]]


@contextmanager
def heard() -> Iterator[Said]:
    """Row -> ids, drop and cf of each call of the layer, as sums are told, the first call first."""
    said: Said = defaultdict(list)
    add = FoldedSums.add_changes

    def hear(self: FoldedSums, row: int, **seen: Tensor) -> None:
        said[row].insert(0, (seen["ids_TK"], seen["drop_TK"], seen["cf_TK"]))
        add(self, row, **seen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FoldedSums, "add_changes", hear)
        yield said


def check(
    plain: Any,
    layout: MoeLayout,
    read: Batch,
    said: Said,
    *,
    whole: bool,
    tolerance: float,
) -> None:
    layers = moe_layers(plain, layout)
    calls: dict[int, list[Call]] = {id(layer): [] for layer in layers}
    with ExitStack() as stack:
        for layer in layers:
            block = block_of(plain, layer)
            stack.enter_context(watching(layer, block, calls[id(layer)], whole=whole))
        loss_of(plain, read).backward()
    live = torch.from_numpy(read.mask_BS.reshape(-1) == 1)
    seen = 0
    for layer in layers:
        for (ids_TK, drop_TK, cf_TK), call in zip(said[layer.row], calls[id(layer)], strict=True):
            gamma_TH = call.gradient().flatten(0, -2)[live]
            here_TH = call.output.detach().flatten(0, -2)[live]
            if not whole:  # all of what the experts add is theirs
                dropped_T = drop_TK.double().sum(dim=1) + (gamma_TH * here_TH).sum(dim=1).double()
                assert dropped_T.abs().max() <= tolerance * (gamma_TH * here_TH).abs().sum(1).max()
            cf_TE = torch.zeros(len(ids_TK), layer.num_outputs + 1, dtype=torch.float64)
            ids_TK = torch.where(ids_TK < 0, layer.num_outputs, ids_TK)
            cf_TE.scatter_(1, ids_TK, cf_TK.double())
            for expert in range(layer.num_experts):
                chose_T = (ids_TK == expert).any(dim=1)
                without_TH = call.without(plain, layer, layout, expert).flatten(0, -2)[live]
                want_T = (gamma_TH * (without_TH - here_TH)).sum(dim=1).double()
                scale = float((gamma_TH * here_TH).abs().sum(dim=1).max())
                wrong = (
                    (cf_TE[chose_T, expert] - want_T[chose_T]).abs().max() if chose_T.any() else 0
                )
                assert wrong <= tolerance * scale, (layer.layer, expert, float(wrong), scale)
                seen += int(chose_T.sum())
    assert seen > 20


class Call:
    """A call of a layer's block in the plain model."""

    def __init__(self, block: nn.Module, args: Any, kwargs: Any, *, whole: bool) -> None:
        self.block, self.args, self.kwargs, self.whole = block, args, kwargs, whole
        self.output = torch.zeros(0)

    def gradient(self) -> Tensor:
        found = self.output.grad
        assert found is not None
        return found

    @torch.no_grad()
    def without(self, plain: Any, layer: MoeLayer, layout: MoeLayout, expert: int) -> Tensor:
        found: list[Tensor] = []
        target = self.block if self.whole else layer.experts
        handle = target.register_forward_hook(lambda _m, _a, out: found.append(first(out)))
        masked = masked_experts(
            plain,
            routers=[layer.router],
            num_experts=[layer.num_experts],
            removed=[[expert]],
            extra=layout.extra_rows,
        )
        with masked:
            self.block(*self.args, **self.kwargs)
        handle.remove()
        return found[0]


@contextmanager
def watching(
    layer: MoeLayer, block: nn.Module, calls: list[Call], *, whole: bool
) -> Iterator[None]:
    target = block if whole else layer.experts

    def before(block: Any, args: Any, kwargs: Any) -> None:
        calls.append(Call(block, args, kwargs, whole=whole))

    def after(_module: Any, _args: Any, output: Any) -> None:
        calls[-1].output = first(output)
        calls[-1].output.retain_grad()

    handles = (
        block.register_forward_pre_hook(before, with_kwargs=True),
        target.register_forward_hook(after),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def block_of(plain: Any, layer: MoeLayer) -> nn.Module:
    """What is called with hidden states, and whose router this is."""
    (name,) = (name for name, module in plain.named_modules() if module is layer.router)
    name = name.rpartition(".")[0]
    if name.endswith("self_attention.experts"):
        name = name.rpartition(".")[0]
    block: nn.Module = plain.get_submodule(name)
    return block


def first(output: Any) -> Tensor:
    return next(tensors(output))

"""Forbid experts to the routers of a live model: the oracle every export is checked against.

A uniform export computes exactly what the full model computes when the removed experts' router
logits are −inf and, where a router selects by a biased score, their biases are −inf too. A router
that looks its choice up gets the table that the export has. No weight moves, so one loaded model
can stand for any plan.

L MoE layers, E experts of a layer, T tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from moeprune.core.hash_table import replaced
from moeprune.errors import VerificationError
from moeprune.live.routers import LINEAR, is_selection_bias


class _MaskLogits(TorchFunctionMode):
    """While active, every linear map onto all choices gives −inf for the removed experts."""

    def __init__(self, removed_ids: Sequence[int], num_choices: int) -> None:
        super().__init__()
        self._removed_ids = torch.tensor(removed_ids, dtype=torch.long)
        self._num_choices = num_choices
        self.hits = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in LINEAR and result.shape[-1] == self._num_choices:
            self.hits += 1
            result = result.index_fill(-1, self._removed_ids.to(result.device), -torch.inf)
        return result


@contextmanager
def masked_experts(
    model: nn.Module,
    *,
    routers: Sequence[nn.Module],
    num_experts: Sequence[int],
    removed: Sequence[Sequence[int]],
    extra: int = 0,
) -> Iterator[None]:
    """Within the block, no router of ``model`` can choose the removed experts.

    Args:
        model: a loaded model; parameters and modules are restored at the end.
        routers: the router module of each MoE layer in each stack, modules of ``model``.
        num_experts: routed experts of each.
        removed: of each, a sequence of expert ids.
        extra: further outputs of every router after those of its experts, which stay.

    Raises:
        VerificationError: at the end of the block, if a router never ran, or ran without its
            logits having been masked: then nothing computed inside means anything.
    """
    names = {id(module): name for name, module in model.named_modules()}
    with ExitStack() as stack:
        for router, width, ids in zip(routers, num_experts, removed, strict=True):
            if ids:
                name = names[id(router)]
                block = model.get_submodule(name.rpartition(".")[0])
                kept = sorted(set(range(width)) - set(ids))
                stack.enter_context(_replaced_table(router, kept))
                stack.enter_context(_masked_bias(block, {width, width + extra}, ids))
                stack.enter_context(_masked_router(router, width + extra, ids, name=name))
        yield


@contextmanager
def _masked_router(
    router: nn.Module, num_choices: int, removed_ids: Sequence[int], *, name: str
) -> Iterator[None]:
    mode = _MaskLogits(removed_ids, num_choices)
    calls = 0
    own = router.__dict__.get("forward")
    forward = router.forward

    def masked(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        with mode:
            return forward(*args, **kwargs)

    # On the instance, never the class: accelerate shadows class forwards on dispatched models.
    router.__dict__["forward"] = masked
    try:
        yield
        if calls == 0 or mode.hits != calls:
            raise VerificationError(
                f"{name}: {mode.hits} of {calls} calls of the router were masked; the masked model "
                "cannot be trusted as a reference for this family."
            )
    finally:
        if own is None:
            del router.__dict__["forward"]
        else:
            router.__dict__["forward"] = own


@contextmanager
def _replaced_table(router: nn.Module, keep: Sequence[int]) -> Iterator[None]:
    """A router that looks up its choice finds a kept expert wherever the table names another."""
    table = getattr(router, "tid2eid", None)
    if table is None:
        yield
        return
    former = table.clone()
    with torch.no_grad():
        table.copy_(torch.from_numpy(replaced(table.cpu().long().numpy(), keep)))
    try:
        yield
    finally:
        with torch.no_grad():
            table.copy_(former)


@contextmanager
def _masked_bias(
    block: nn.Module, widths: Collection[int], removed_ids: Sequence[int]
) -> Iterator[None]:
    """Selection biases of a router, its own or its block's, are −inf for the removed experts."""
    saved: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        for name, tensor in (*block.named_parameters(), *block.named_buffers()):
            if is_selection_bias(name) and tensor.shape[-1] in widths:
                saved.append((tensor, tensor.clone()))
                tensor[..., list(removed_ids)] = -torch.inf
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in saved:
                tensor.copy_(value)

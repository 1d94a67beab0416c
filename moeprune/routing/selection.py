"""The experts that each token is given, in the order in which its router ranks them.

What counts is what the experts are given, or, of families whose experts are called in another way,
what the router returns: the model's own choice, under any policy, plan and stored format. Its order
is that of the scores by which the router chooses: its logits, or where a bias takes part in the
choice alone, its scores and that bias. Of equal scores the lower id comes first.

S tokens of a text, E experts and idle choices, K chosen, P runs of a layer in a forward pass.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from moeprune.errors import CheckpointError, UnsupportedModelError, UsageError
from moeprune.live.routers import is_selection_bias
from moeprune.routing.rule import keeps_order

Ids = NDArray[np.int64]


Layer = Any
"""A :class:`moeprune.observe.layers.MoeLayer`; these folders do not import each other."""


def selections(
    model: nn.Module,
    decoder: Any,
    layers: Sequence[Layer],
    texts: Iterable[Sequence[int]],
    *,
    gating: str,
    kind: str,
    device: torch.device,
) -> Generator[list[Ids]]:
    """Let a model read texts one by one, each alone, so that nothing depends on a batch.

    Close the iterator where it is not read to its end: the model is listened to until then.

    Args:
        model: a causal language model.
        decoder: the part of it that is run: no head is needed.
        layers: its MoE layers.
        texts: token ids.
        gating: from logits to scores.
        kind: how the experts are called: the observer of the family.
        device: where the model reads its tokens.

    Yields:
        Of each text, (P, S, K) ids of each row, the best first.

    Raises:
        UnsupportedModelError: a layer cannot be listened to.
        CheckpointError: the model lacks a token, or a router gives NaN.
        UsageError: a text does not fit the GPU's memory.
    """
    if kind == "canvas":
        raise UnsupportedModelError(
            f"a {type(model).__name__} reads a text in many steps, of which no one is its "
            "selection. Take a model that reads it in one."
        )
    size = int(model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    heard: dict[int, list[Tensor]] = {}
    with ExitStack() as stack:
        for layer in layers:
            for handle in _Ear(model, layer, heard, gating=gating, kind=kind).handles():
                stack.callback(handle.remove)
        for ids in texts:
            if max(ids) >= size:
                raise CheckpointError(
                    f"the tokenizer gives token {max(ids)}, the model has {size}. The tokenizer "
                    "files belong to another model."
                )
            heard.clear()
            _read(decoder, ids, device)
            yield [_of_row(heard, layer, len(ids)) for layer in _one_a_row(layers)]


@torch.inference_mode()
def _read(decoder: Any, ids: Sequence[int], device: torch.device) -> None:
    try:
        decoder(input_ids=torch.tensor([list(ids)], device=device), use_cache=False)
    except torch.OutOfMemoryError as problem:
        raise UsageError(
            f"a text of {len(ids)} tokens does not fit the GPU's memory; give a smaller --chunk."
        ) from problem


def _one_a_row(layers: Sequence[Layer]) -> list[Layer]:
    return list({layer.row: layer for layer in layers}.values())


def _of_row(heard: Mapping[int, list[Tensor]], layer: Layer, tokens: int) -> Ids:
    found = heard.get(layer.row, [])
    shapes = {tuple(ids_SK.shape) for ids_SK in found}
    if not found or len(shapes) != 1 or next(iter(shapes))[0] != tokens:
        what = "its experts were never given a choice" if not found else f"it chose {shapes}"
        raise UnsupportedModelError(
            f"layer {layer.layer}: {what} for {tokens} tokens; what it selects cannot be heard as "
            "this model is loaded. Load it with plain experts (on a CPU, or dequantised)."
        )
    return np.asarray(torch.stack(found).cpu().numpy())


class _Ear:
    """Hooks on one layer."""

    def __init__(
        self,
        model: nn.Module,
        layer: Layer,
        heard: dict[int, list[Tensor]],
        *,
        gating: str,
        kind: str,
    ) -> None:
        self._layer, self._heard, self._gating, self._kind = layer, heard, gating, kind
        self._bias = _bias_of(model, layer)
        self._ordered = _in_order(layer.router)
        self._said: Any = None

    def handles(self) -> Iterator[Any]:
        yield self._layer.router.register_forward_hook(self._router)
        if self._kind not in _BY_ROUTER:
            yield self._layer.experts.register_forward_pre_hook(self._experts, with_kwargs=True)

    def _router(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._said = output
        if self._kind in _BY_ROUTER:
            self._keep(*_BY_ROUTER[self._kind](self._layer, output))

    def _experts(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        given = [value for value in (*args, *kwargs.values()) if torch.is_tensor(value)]
        ids = [value for value in given if not value.is_floating_point() and value.ndim == 2]
        said, self._said = self._said, None
        first = said[0] if isinstance(said, tuple | list) else said
        if len(ids) != 1 or not torch.is_tensor(first) or not first.is_floating_point():
            return  # the row stays without a choice, and that is said
        self._keep(ids[0], first)

    def _keep(self, ids_SK: Tensor, logits_SE: Tensor) -> None:
        ids_SK, logits_SE = ids_SK.long(), logits_SE.reshape(-1, logits_SE.shape[-1])
        biased = self._bias is not None
        if not (biased and self._ordered):
            scores_SE = _wide(logits_SE)
            if self._bias is not None:
                holder, name = self._bias
                bias_E = getattr(holder, name).detach().reshape(-1).to(logits_SE.device)
                scores_SE = _scores(scores_SE, self._gating) + _wide(bias_E)
            ids_SK = ranked(ids_SK.to(logits_SE.device), scores_SE, layer=self._layer.layer)
        self._heard.setdefault(self._layer.row, []).append(ids_SK)


def ranked(ids_SK: Tensor, scores_SE: Tensor, *, layer: int) -> Tensor:
    """Each token's experts by their scores, the highest first; of equal ones the lower id.

    Raises:
        CheckpointError: a score is not a number.
    """
    ids_SK = ids_SK.sort(dim=1).values
    own_SK = scores_SE.gather(1, ids_SK)
    if bool(own_SK.isnan().any()):
        raise CheckpointError(
            f"layer {layer}: the router gives a number that is not finite. In float16 numbers "
            "overflow: give --dtype bfloat16 or float32; else the weights are damaged."
        )
    order_SK = own_SK.sort(dim=1, descending=True, stable=True).indices
    return ids_SK.gather(1, order_SK)


def _bias_of(model: nn.Module, layer: Layer) -> tuple[nn.Module, str] | None:
    """Where a router, or the block around it, has what is added to scores for the choice alone."""
    path = next(name for name, module in model.named_modules() if module is layer.router)
    block = model.get_submodule(path.rpartition(".")[0])
    for path, tensor in (*block.named_parameters(), *block.named_buffers()):
        if is_selection_bias(path) and tensor.numel() >= layer.num_experts:
            holder, _, name = path.rpartition(".")
            return block.get_submodule(holder), name
    return None


def _in_order(router: nn.Module) -> bool:
    """Whether a router returns its choice in the order of the scores that it chose by."""
    own = getattr(router, "moeprune", None)  # as an export's code has it
    if isinstance(own, dict):
        return bool(own.get("in_order"))
    return keeps_order(type(router))


def _scores(logits_SE: Tensor, gating: str) -> Tensor:
    if gating == "sigmoid":
        return torch.sigmoid(logits_SE)
    if gating == "sqrtsoftplus":
        return torch.nn.functional.softplus(logits_SE).sqrt()
    return torch.softmax(logits_SE, dim=-1)


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _of_jetmoe(layer: Layer, output: Any) -> tuple[Tensor, Tensor]:
    """(token, expert) pairs are grouped by expert; pair p is place order_P[p] of the choices."""
    order_P, _, _, counts_E, logits_SE = output
    experts = torch.arange(layer.num_experts, device=order_P.device)
    ids_P = experts.repeat_interleave(torch.tensor(counts_E, device=order_P.device))
    back_P = torch.empty_like(ids_P).index_copy_(0, order_P, ids_P)
    return back_P.reshape(logits_SE.shape[0], -1), logits_SE


def _of_llama4(layer: Layer, output: Any) -> tuple[Tensor, Tensor]:
    """Every expert is given every token, most of them times 0."""
    _, logits_SE = output
    return torch.topk(logits_SE, int(layer.router.top_k), dim=1).indices, logits_SE


def _of_zaya(layer: Layer, output: Any) -> tuple[Tensor, Tensor]:
    """A token that skips is given expert 0 with weight 0; its choice is the idle one."""
    logits_SC, weights_SK, ids_SK, _ = output
    return ids_SK.masked_fill(weights_SK == 0, layer.num_experts), logits_SC


_BY_ROUTER = {"jetmoe": _of_jetmoe, "llama4": _of_llama4, "zaya": _of_zaya}

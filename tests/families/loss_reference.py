"""Plain autograd through a whole model: gradients of what its layers give and the experts receive.

B documents, S positions, H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from moeprune.observe.batches import Batch
from moeprune.observe.inputs import inputs_of
from moeprune.observe.load import decoder_of
from moeprune.observe.loss.head import speaker_of
from moeprune.observe.loss.nests import tensors


def loss_of(model: Any, batch: Batch) -> Tensor:
    """The summed loss of a batch's targets, by the model's own forward pass."""
    speaker = speaker_of(model)
    inputs = inputs_of(decoder_of(speaker), batch, torch.device("cpu"))
    logits_BSV = speaker(**inputs, use_cache=False).logits
    target_BS = torch.from_numpy(batch.target_BS)
    log_BSV = logits_BSV.double().log_softmax(dim=-1)[:, :-1]
    nats_BS = -log_BSV.gather(2, torch.from_numpy(batch.ids_BS)[:, 1:, None])[..., 0]
    return nats_BS[target_BS[:, 1:]].sum()


class Gradients:
    """Gradients that arrive at what some modules give: module -> one for each call and tensor.

    A leaf gets its gradient in as many parts as it has uses.
    """

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self.found: dict[tuple[str, int, int], Tensor] = {}
        self.calls: dict[str, int] = dict.fromkeys(modules, 0)
        self._modules = modules
        self._handles: list[Any] = []

    def __enter__(self) -> Gradients:
        for name, module in self._modules.items():
            self._handles.append(module.register_forward_hook(self._watch(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _watch(self, name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not torch.is_grad_enabled():
                return
            call = self.calls[name]
            self.calls[name] += 1
            for place, value in enumerate(tensors(output)):
                if value.requires_grad:
                    value.register_hook(self._keep(name, call, place))

        return hook

    def _keep(self, name: str, call: int, place: int) -> Any:
        def hook(gradient: Tensor) -> None:
            key = (name, call, place)
            former = self.found.get(key)
            self.found[key] = gradient.clone() if former is None else former + gradient

        return hook

"""What the loss says of choices where experts are not weighed one by one: the block runs again.

Where a score scales what an expert receives, or an expert is a part of an attention, δ is taken as
it is defined: for each place of a token's choice once, the whole block runs without autograd, its
router answering as if the expert in that place could not be selected; what the block then gives,
less what it gave, times its gradient is the change of the loss. A token's choice must change what
the block gives for that token alone.

T tokens, K experts chosen, H hidden size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from moeprune.errors import UnsupportedModelError
from moeprune.observe.layers import MoeLayer
from moeprune.observe.loss.asking import Asked, Listener
from moeprune.observe.loss.cuts import put
from moeprune.observe.loss.nests import tensors
from moeprune.observe.sums import FoldedSums


class Reruns:
    """Blocks that run again, and the reports of what comes of it.

    Args:
        sums: are told.

    Attributes:
        active: one runs again at the moment: what observers see then is not to be counted.
    """

    def __init__(self, sums: FoldedSums) -> None:
        self._sums, self._listener = sums, Listener()
        self._given: dict[int, tuple[Tensor, Tensor]] = {}
        self.active = False

    def given(self, layer: MoeLayer, ids_TK: Tensor, given_TKH: Tensor) -> None:
        """Keep what the experts of a layer that is under autograd add, until its block has run.

        Args:
            layer: the layer.
            ids_TK: int64 experts chosen, of all positions.
            given_TKH: what each adds to its token.
        """
        self._given[id(layer.router)] = (ids_TK, given_TKH.detach())

    @contextlib.contextmanager
    def on(self, layer: MoeLayer, block: nn.Module) -> Iterator[None]:
        """Inside the block, a layer that runs under autograd reports; nothing, without a loss.

        Args:
            layer: the layer.
            block: the module that gives what its experts add together, alone or first.
        """
        if not self._sums.loss:
            yield
            return

        def called(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if torch.is_grad_enabled():
                first = next(tensors(output))
                first.register_hook(self._report(layer, first.detach(), forward, args, kwargs))
            return output

        undo = put(block, called)
        try:
            with self._listener.on(layer):
                yield
        finally:
            undo()

    def _report(
        self, layer: MoeLayer, output: Tensor, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Callable[[Tensor], None]:
        asked = self._listener.heard.pop(id(layer.router), None)
        ids_TK, given_TKH = self._given.pop(id(layer.router), (None, None))
        if asked is None or ids_TK is None or given_TKH is None:
            raise UnsupportedModelError(
                f"layer {layer.layer}: how its experts were chosen was not heard; this family "
                "cannot be measured with --loss-aware."
            )
        output_TH = output.reshape(len(ids_TK), -1)
        others = []
        for place in range(ids_TK.shape[1]):
            again = self._without(layer, asked, ids_TK[:, place], forward, args, kwargs)
            others.append(again.reshape(output_TH.shape) - output_TH)
        change_TKH = torch.stack(others, dim=1)

        def live(values: Tensor) -> Tensor:
            return self._sums.live(values, row=layer.row)

        ids_TK, given_TKH, change_TKH = live(ids_TK), live(given_TKH), live(change_TKH)

        def report(gradient: Tensor) -> None:
            gradient_TH1 = live(gradient.reshape(output_TH.shape)).double()[..., None]
            drop_TK, cf_TK = (
                (values_TKH.double() @ gradient_TH1)[..., 0]
                for values_TKH in (-given_TKH, change_TKH)
            )
            self._sums.add_changes(layer.row, ids_TK=ids_TK, drop_TK=drop_TK, cf_TK=cf_TK)

        return report

    @torch.no_grad()
    def _without(
        self,
        layer: MoeLayer,
        asked: Asked,
        gone_T: Tensor,
        forward: Callable[..., Any],
        args: Any,
        kwargs: Any,
    ) -> Tensor:
        undo = put(layer.router, lambda *_args, **_kwargs: asked.without(gone_T))
        self.active = True
        try:
            return next(tensors(forward(*args, **kwargs)))
        finally:
            self.active = False
            undo()

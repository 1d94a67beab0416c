"""What chooses the experts of a layer is asked again, with one expert a token that it may not take.

Nothing of a router's rule is written here. The call that chose is made once more, with the same
arguments; only that its linear maps give again what they gave, and −inf where an expert is not to
be had. A bias that takes part in the choice alone is −inf there too, and a table that names the
experts names another, as when a plan removes that expert (see ``routing.mask``).

T tokens, K experts chosen, E experts, C outputs of a router: experts, and what follows them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from moeprune.core.hash_table import without_one
from moeprune.errors import UnsupportedModelError
from moeprune.live.routers import LINEAR, is_selection_bias
from moeprune.observe.layers import MoeLayer
from moeprune.observe.loss.cuts import put

_BLOCK_METHOD = "route_tokens_to_experts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call that chose experts, so that it can be made again.

    Attributes:
        layer: the layer.
        call: what was called.
        args, kwargs: with what.
        products: what its linear maps gave, in order.
        answer: what it gave.
        given_scores: whether the first argument are the experts' scores.
    """

    layer: MoeLayer
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    products: tuple[Tensor, ...]
    answer: tuple[Any, ...]
    given_scores: bool

    def without(self, gone_T: Tensor) -> tuple[Any, ...]:
        """The answer where each token may not have one expert.

        Args:
            gone_T: int64 expert that cannot be selected, −1: all can.

        Raises:
            UnsupportedModelError: nothing of the call is known to be the experts' scores.
        """
        mode = _Again(self, gone_T)
        args = self.args
        if self.given_scores:
            args = (mode.masked(args[0]), *args[1:])
        with torch.no_grad(), mode:
            answer = self.call(*args, **self.kwargs)
        if not mode.sure:
            raise UnsupportedModelError(
                f"layer {self.layer.layer}: no single linear map of its router gives scores of "
                f"{self.layer.num_outputs} experts, so it cannot be asked again; this family "
                "cannot be measured with --loss-aware."
            )
        return tuple(answer)


@dataclass(slots=True)
class Listener:
    """Keeps the calls that choose, while autograd is on."""

    heard: dict[int, Asked] = field(default_factory=dict)

    @contextlib.contextmanager
    def on(self, layer: MoeLayer) -> Iterator[None]:
        """Listen to a layer inside the block; what it asked is at ``heard[id(router)]``."""
        chooser, name = layer.router, "forward"
        if layer.block is not None and hasattr(layer.block, _BLOCK_METHOD):
            chooser, name = layer.block, _BLOCK_METHOD

        def called(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return call(*args, **kwargs)
            mode = _Record()
            with mode:
                answer = call(*args, **kwargs)
            if isinstance(answer, tuple | list):
                answer = type(answer)(_asking(value) for value in answer)
                self.heard[id(layer.router)] = Asked(
                    layer=layer,
                    call=call,
                    args=args,
                    kwargs=kwargs,
                    products=tuple(mode.products),
                    answer=tuple(answer),
                    given_scores=chooser is not layer.router,
                )
            return answer

        undo = put(chooser, called, name)
        try:
            yield
        finally:
            undo()


def _asking(value: Any) -> Any:
    """A number of the answer asks for its gradient, where nothing before it does."""
    if isinstance(value, Tensor) and value.is_floating_point() and not value.requires_grad:
        return value.detach().requires_grad_()
    return value


class _Record(TorchFunctionMode):
    """While active, what linear maps give is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in LINEAR:
            # A copy: some routers go on in place.
            self.products.append(result.detach().clone())
        return result


class _Again(TorchFunctionMode):
    """While active, linear maps give what they gave, and no expert that is gone can be chosen."""

    def __init__(self, asked: Asked, gone_T: Tensor) -> None:
        super().__init__()
        layer = asked.layer
        self._widths = {layer.num_experts, layer.num_outputs}
        self._outputs = layer.num_outputs
        self._products = iter(asked.products)
        self._token_N = (gone_T >= 0).nonzero()[:, 0]
        self._gone_N = gone_T[self._token_N]
        self._gone_T = gone_T
        self._scores: list[Tensor] = []
        # What comes of a bias alone is one too; held here, so that no id is used twice.
        self._biases = {id(bias): bias for bias in self._own_biases(layer.router)}
        for value in (*asked.args[1:], *asked.kwargs.values()):
            if isinstance(value, Tensor) and value.is_floating_point() and self._fits(value):
                self._biases[id(value)] = value
        self._table = getattr(layer.router, "tid2eid", None)
        self._num_experts = layer.num_experts

    def _own_biases(self, router: nn.Module) -> list[Tensor]:
        named = (*router.named_parameters(), *router.named_buffers())
        return [value for name, value in named if is_selection_bias(name) and self._fits(value)]

    def _fits(self, value: Tensor) -> bool:
        return value.numel() in self._widths and value.shape[-1] == value.numel()

    @property
    def sure(self) -> bool:
        """Whether one product, if several times, is the experts' scores."""
        first, *others = self._scores or (None,)
        return first is not None and all(torch.equal(first, other) for other in others)

    def masked(self, scores: Tensor) -> Tensor:
        """Scores of all tokens with −inf for the experts that are gone."""
        self._scores.append(scores)
        return self._put(scores)

    def _put(self, scores: Tensor) -> Tensor:
        flat_TC = scores.reshape(-1, scores.shape[-1]).clone()
        at = (self._token_N.to(scores.device), self._gone_N.to(scores.device))
        flat_TC[at] = -torch.inf
        return flat_TC.reshape(scores.shape)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in LINEAR:
            product = next(self._products)
            return self.masked(product) if product.shape[-1] == self._outputs else product.clone()
        result = func(*args, **(kwargs or {}))
        given = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)]
        if func is Tensor.__getitem__ and args[0] is self._table:
            return self._other_entries(result, args[1])
        if isinstance(result, Tensor) and any(id(value) in self._biases for value in given):
            if any(id(value) not in self._biases for value in given):
                return self._put(result)
            if result.is_floating_point() and self._fits(result):
                self._biases[id(result)] = result
        return result

    def _other_entries(self, ids_TK: Tensor, row_T: Tensor) -> Tensor:
        other_TK = without_one(
            ids_TK.cpu().long().numpy(),
            row_T.reshape(-1).cpu().long().numpy(),
            self._gone_T.cpu().numpy(),
            num_experts=self._num_experts,
        )
        return torch.from_numpy(other_TK).to(ids_TK.device, ids_TK.dtype)

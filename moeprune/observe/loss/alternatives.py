"""Which experts a token would visit if one of its own could not be selected, and with what weight.

Nothing of a router's rule is written here: the live router is asked again, expert by expert, on the
tokens that chose it, with that expert's logit at −inf, as an export's routers are checked.

T tokens, K experts chosen, X experts that would move in, J = K + X, N tokens of one expert.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from moeprune.errors import UnsupportedModelError
from moeprune.observe.layers import MoeLayer

_LINEAR = frozenset(
    {nn.functional.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm}
)
_BIAS = re.compile(r"(^|\.)(e_score_correction_bias|expert_bias|router_bias|balancing_biases)$")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a router was asked, so that it can be asked again.

    Attributes:
        args, kwargs: of the call.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What would change.

    Attributes:
        extra_TX: int64 experts that some of a token's answers bring in, −1 = none.
        change_TKJ: of each expert chosen, the weights of the answer without it less those of the
            choice, of the chosen ones and then of the extra ones.
    """

    extra_TX: Tensor
    change_TKJ: Tensor


def alternatives(
    layer: MoeLayer, asked: Asked, live_T: Tensor | None, ids_TK: Tensor, weights_TK: Tensor
) -> Alternatives:
    """Ask a layer's router again.

    Args:
        layer: the layer.
        asked: what its router was asked, of all positions.
        live_T: of these, the tokens; None: all.
        ids_TK: int64 experts that it chose.
        weights_TK: their weights.

    Raises:
        UnsupportedModelError: the router cannot be asked again.
    """
    with torch.no_grad():
        tokens, top_k = ids_TK.shape
        new_TKK = torch.zeros(tokens, top_k, top_k, dtype=torch.int64, device=ids_TK.device)
        weight_TKK = torch.zeros(tokens, top_k, top_k, dtype=torch.float64, device=ids_TK.device)
        for expert in torch.unique(ids_TK).tolist():
            token_N, rank_N = (ids_TK == expert).nonzero(as_tuple=True)
            place_N = token_N if live_T is None else live_T.to(token_N.device)[token_N]
            new_NK, weight_NK = _without(layer, asked, expert, place_N)
            new_TKK[token_N, rank_N] = new_NK
            weight_TKK[token_N, rank_N] = weight_NK.double()
        return _compared(new_TKK, weight_TKK, ids_TK, weights_TK.double())


def _without(layer: MoeLayer, asked: Asked, expert: int, place_N: Tensor) -> tuple[Tensor, Tensor]:
    """(N, K) ids and weights of the router's answer where ``expert`` cannot be selected."""
    router = layer.router
    hidden, *rest = asked.args
    if rest or asked.kwargs or not isinstance(hidden, Tensor):
        raise UnsupportedModelError(
            f"layer {layer.layer}: its router is asked more than hidden states, and cannot be "
            "asked again; leave --loss-aware out for this model."
        )
    rows = hidden.reshape(-1, hidden.shape[-1])[place_N]
    rows = rows.reshape(*(1,) * (hidden.ndim - 2), *rows.shape)
    mode = _Without(expert, layer.num_experts + layer.num_idle)
    with mode, _masked_bias(router, layer, expert):
        answer = router.forward(rows)
    if mode.hits != 1 or not isinstance(answer, tuple) or len(answer) < 3:
        raise UnsupportedModelError(
            f"layer {layer.layer}: a {type(router).__name__} does not say which experts it "
            "chooses when one is masked; leave --loss-aware out for this model."
        )
    first, second = answer[1], answer[2]
    if first.is_floating_point():  # some give ids first
        first, second = second, first
    return first.reshape(len(place_N), -1), second.reshape(len(place_N), -1)


class _Without(TorchFunctionMode):
    """While active, a linear map onto all choices gives −inf for one."""

    def __init__(self, expert: int, num_choices: int) -> None:
        super().__init__()
        self._expert, self._num_choices, self.hits = expert, num_choices, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _LINEAR and result.shape[-1] == self._num_choices:
            self.hits += 1
            result[..., self._expert] = -torch.inf
        return result


@contextlib.contextmanager
def _masked_bias(router: nn.Module, layer: MoeLayer, expert: int) -> Iterator[None]:
    """A bias that takes part in the choice is −inf for the expert."""
    widths = {layer.num_experts, layer.num_experts + layer.num_idle}
    saved = [
        (tensor, tensor[..., expert].clone())
        for name, tensor in (*router.named_parameters(), *router.named_buffers())
        if _BIAS.search(name) and tensor.shape[-1] in widths
    ]
    try:
        for tensor, _ in saved:
            tensor[..., expert] = -torch.inf
        yield
    finally:
        for tensor, value in saved:
            tensor[..., expert] = value


def _compared(
    new_TKK: Tensor, weight_TKK: Tensor, ids_TK: Tensor, weights_TK: Tensor
) -> Alternatives:
    tokens, top_k = ids_TK.shape
    flat_TS = new_TKK.reshape(tokens, -1)
    known_TS = (flat_TS[:, :, None] == ids_TK[:, None]).any(dim=2)
    # Each extra expert once a token: sorted, the first of its kind stays.
    extra_TS = torch.where(known_TS, -1, flat_TS).sort(dim=1, descending=True).values
    same_TS = torch.zeros_like(extra_TS, dtype=torch.bool)
    same_TS[:, 1:] = extra_TS[:, 1:] == extra_TS[:, :-1]
    extra_TS = torch.where(same_TS, -1, extra_TS).sort(dim=1, descending=True).values
    most = int((extra_TS >= 0).sum(dim=1).max()) if tokens else 0
    extra_TX = extra_TS[:, :most]
    candidates_TJ = torch.cat([ids_TK, extra_TX], dim=1)
    change_TKJ = torch.zeros(
        tokens, top_k, candidates_TJ.shape[1], dtype=torch.float64, device=ids_TK.device
    )
    for choice in range(top_k):
        here_TKJ = new_TKK[:, :, choice, None] == candidates_TJ[:, None]
        change_TKJ += here_TKJ * weight_TKK[:, :, choice, None]
    change_TKJ[:, :, :top_k] -= weights_TK[:, None]
    return Alternatives(extra_TX, change_TKJ)

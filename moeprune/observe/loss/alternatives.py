"""Which experts a token would visit if one of its own could not be selected, and with what weight.

What chose is asked again, for each place of a token's choice once (see ``asking``). Most often one
expert moves in and the weights of all others change; where experts stand in groups, several may.

T tokens, K experts chosen, X experts that would move in, J = K + X.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moeprune.errors import UnsupportedModelError
from moeprune.observe.loss.asking import Asked


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What would change.

    Attributes:
        extra_TX: int64 experts that some of a token's answers bring in, −1 = none.
        change_TKJ: of each expert chosen, the weights of the answer without it less those of the
            choice, of the chosen ones and then of the extra ones; float64.
        rest: numbers that what chose gives beside weights, of which autograd knows what the loss
            makes of them (weights of shared experts), (T, R); None: there are none that change.
        rest_TKR: of each expert chosen, these without it less these.
        live_T: where the tokens stand in ``rest``; None: they are all of it.
    """

    extra_TX: Tensor
    change_TKJ: Tensor
    rest: Tensor | None = None
    rest_TKR: Tensor | None = None
    live_T: Tensor | None = None

    def of(self, live_T: Tensor | None) -> Alternatives:
        """Those of some of the positions; None: of all."""
        if live_T is None:
            return self
        live_T = live_T.to(self.extra_TX.device)
        return Alternatives(
            extra_TX=self.extra_TX[live_T],
            change_TKJ=self.change_TKJ[live_T],
            rest=self.rest,
            rest_TKR=None if self.rest_TKR is None else self.rest_TKR[live_T],
            live_T=live_T,
        )


@torch.no_grad()
def alternatives(
    asked: Asked, ids_TK: Tensor, weights_TK: Tensor, choice_TK: Tensor | None = None
) -> Alternatives:
    """Ask what chose the experts of all positions again.

    Args:
        asked: the call.
        ids_TK: int64 experts that were run.
        weights_TK: their weights.
        choice_TK: the choice to count, where it is another; what is no routed expert cannot leave.

    Raises:
        UnsupportedModelError: the answer is not what the experts were given, or no answer without
            an expert comes back.
    """
    layer = asked.layer
    choice_TK = ids_TK if choice_TK is None else choice_TK
    at_weights, at_ids = _places(asked, ids_TK, weights_TK)
    tokens, top_k = ids_TK.shape
    others_TKK = torch.full((tokens, top_k, top_k), -1, dtype=torch.int64, device=ids_TK.device)
    weights_TKK = torch.zeros(others_TKK.shape, dtype=torch.float64, device=ids_TK.device)
    rest, changes = _rest(asked, at_weights, at_ids), []
    for place in range(top_k):
        gone_T = choice_TK[:, place]
        gone_T = torch.where(gone_T < layer.num_experts, gone_T, -1)
        answer = asked.without(gone_T)
        others_TK = answer[at_ids].to(ids_TK.device, torch.int64)
        new_TK = answer[at_weights].to(ids_TK.device, torch.float64)
        if others_TK.shape != ids_TK.shape:
            raise UnsupportedModelError(
                f"layer {layer.layer}: without an expert its router gives {list(others_TK.shape)} "
                f"choices, with it {list(ids_TK.shape)}; this family cannot be measured with "
                "--loss-aware."
            )
        # Where nothing is left to choose from, a softmax is of nothing.
        new_TK = torch.where(new_TK.isnan(), 0.0, new_TK)
        others_TKK[:, place] = torch.where(new_TK == 0, -1, others_TK)
        weights_TKK[:, place] = new_TK
        if rest is not None:
            changes.append(answer[rest].double() - asked.answer[rest].double())
    found = _compared(others_TKK, weights_TKK, ids_TK, weights_TK.double())
    if not changes or not any(bool(change.any()) for change in changes):
        return found
    assert rest is not None
    return Alternatives(
        found.extra_TX, found.change_TKJ, asked.answer[rest], torch.stack(changes, dim=1)
    )


def _places(asked: Asked, ids_TK: Tensor, weights_TK: Tensor) -> tuple[int, int]:
    """Where in the answer the weights and the ids stand."""

    def place(given: Tensor) -> int | None:
        for at, value in enumerate(asked.answer):
            same = isinstance(value, Tensor) and value.shape == given.shape
            if same and torch.equal(value.to(given), given):
                return at
        return None

    at_weights, at_ids = place(weights_TK), place(ids_TK)
    if at_weights is None or at_ids is None:
        raise UnsupportedModelError(
            f"layer {asked.layer.layer}: its experts are not given what a "
            f"{type(asked.layer.router).__name__} answers, so it cannot be asked what it would do "
            "without one; this family cannot be measured with --loss-aware."
        )
    return at_weights, at_ids


def _rest(asked: Asked, at_weights: int, at_ids: int) -> int | None:
    """Where in the answer something stands that is added with weights of its own."""
    for at in range(max(at_weights, at_ids) + 1, len(asked.answer)):
        value = asked.answer[at]
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 2:
            return at
    return None


def _compared(
    others_TKK: Tensor, weights_TKK: Tensor, ids_TK: Tensor, weights_TK: Tensor
) -> Alternatives:
    tokens, top_k = ids_TK.shape
    flat_TS = others_TKK.reshape(tokens, -1)
    known_TS = (flat_TS[:, :, None] == ids_TK[:, None]).any(dim=2)
    # Each extra expert once a token: sorted, the first of its kind stays.
    extra_TS = torch.where(known_TS, -1, flat_TS).sort(dim=1, descending=True).values
    extra_TS[:, 1:][extra_TS[:, 1:] == extra_TS[:, :-1]] = -1
    extra_TS = extra_TS.sort(dim=1, descending=True).values
    most = int((extra_TS >= 0).sum(dim=1).max()) if tokens else 0
    extra_TX = extra_TS[:, :most]
    all_TJ = torch.cat([ids_TK, extra_TX], dim=1)
    change_TKJ = torch.zeros(
        tokens, top_k, all_TJ.shape[1], dtype=torch.float64, device=ids_TK.device
    )
    change_TKJ[:, :, :top_k] -= weights_TK[:, None]
    for place in range(top_k):
        id_TK1, weight_TK1 = others_TKK[:, :, place, None], weights_TKK[:, :, place, None]
        change_TKJ += torch.where((id_TK1 == all_TJ[:, None]) & (id_TK1 >= 0), weight_TK1, 0.0)
    return Alternatives(extra_TX, change_TKJ)

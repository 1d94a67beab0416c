"""What a block was heard to do: how its router makes scores of logits, and weights of scores.

T tokens, E routed experts, K chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from moeprune.errors import UnsupportedModelError
from moeprune.observe.dispatch import looks_normalised
from moeprune.observe.probe import CLOSE, Heard
from moeprune.observe.scores import router_probabilities

GATINGS = ("softmax", "sigmoid", "sqrtsoftplus")


def gating_of(heard: Heard) -> tuple[str, str]:
    """Gating, and the observer that understands what the router returns.

    A gating fits where a token's weights are in proportion to the scores that it gives the chosen
    experts, and either all weights are one multiple of the scores, or they have the same sum for
    every token.

    Raises:
        UnsupportedModelError: none fits, or more than one.
    """
    logits_TE = heard.logits_TE.double()
    if looks_normalised(logits_TE):
        if _fits(logits_TE, heard):
            return "softmax", "probabilities"
        fitting: list[str] = []
    else:
        scores = scores_of(logits_TE)
        fitting = [name for name in GATINGS if _fits(scores[name], heard)]
    if len(fitting) != 1:
        which = " and ".join(fitting) if fitting else f"none of {', '.join(GATINGS)}"
        raise UnsupportedModelError(
            f"the weights that the router gives do not tell how it makes scores of logits ({which} "
            "would give them). Add a family file (docs/extend.md)."
        )
    return fitting[0], "function"


def renormalises(heard: Heard, *, gating: str) -> str:
    """``always`` or ``never``: whether the router divides a token's weights by their sum.

    Where all experts run, a softmax has that sum anyway, and ``""`` says so.

    Args:
        heard: of the block.
        gating: of it, as :func:`gating_of` found it.
    """
    logits_TE, weights_TK = heard.logits_TE.double(), heard.weights_TK.double()
    scores_TE = logits_TE if looks_normalised(logits_TE) else scores_of(logits_TE)[gating]
    raw = _constant(weights_TK / scores_TE.gather(1, heard.ids_TK))
    if raw == _constant(weights_TK.sum(dim=1)):
        return ""
    return "never" if raw else "always"


def keeps_to_groups(heard: Heard, *, num_groups: int, top_groups: int) -> bool:
    """Whether no token chose from more than ``top_groups`` runs of consecutive experts."""
    size = heard.logits_TE.shape[1] // num_groups
    return all(len(set(row)) <= top_groups for row in (heard.ids_TK // size).tolist())


def scores_of(logits_TE: Tensor) -> Mapping[str, Tensor]:
    """Gating -> (T, E) scores, up to a factor a token for the softmax alone."""
    return {
        "softmax": router_probabilities(logits_TE, gating="softmax"),
        "sigmoid": torch.sigmoid(logits_TE),
        "sqrtsoftplus": torch.nn.functional.softplus(logits_TE).sqrt(),
    }


def _fits(scores_TE: Tensor, heard: Heard) -> bool:
    weights_TK = heard.weights_TK.double()
    ratio_TK = weights_TK / scores_TE.gather(1, heard.ids_TK)
    if not torch.isfinite(ratio_TK).all():
        return False
    each = ratio_TK.amax(dim=1) - ratio_TK.amin(dim=1) <= CLOSE * ratio_TK.abs().amax(dim=1)
    return bool(each.all()) and (_constant(ratio_TK) or _constant(weights_TK.sum(dim=1)))


def _constant(values: Tensor) -> bool:
    return float(values.max() - values.min()) <= CLOSE * float(values.abs().max())

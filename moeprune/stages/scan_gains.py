"""The mean gain of each variant of a scan, as its routers return it on a little of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moeprune.core.policy import RoutingPolicy
from moeprune.stages.eval_model import AskedModel
from moeprune.stages.eval_variants import Variant, applied

if TYPE_CHECKING:
    from moeprune.evaluate.requests import Request

_TOKENS = 2048


def first_tokens(requests: Sequence[Request]) -> list[list[int]]:
    """Some windows of text, as token ids: as many as hold :data:`_TOKENS`, one at least."""
    found: list[list[int]] = []
    for request in requests:
        ids = [int(token) for token in request.pieces[0].input]
        if found and sum(map(len, found)) + len(ids) > _TOKENS:
            break
        found.append(ids[:_TOKENS])
    return found


def measured_gains(
    live: Any, asked: AskedModel, variants: Sequence[Variant], texts: Sequence[Sequence[int]]
) -> list[tuple[float, ...]]:
    """Of each variant, a gain a router: mean over tokens of Σ_{top k₁} π / Σ_{top k₂} π.

    What the weights sum to is divided by what they do at k₁ = k₂ = k, where the gain is 1: a
    family's own scale cancels.

    Args:
        live: the model.
        asked: its files.
        variants: of one plan, or of none.
        texts: token ids.

    Returns:
        Empty tuples where routers return no weights.
    """
    k = asked.routed.top_k
    plan = variants[0].plan
    whole = Variant(name="", plan=plan, policy=RoutingPolicy(k1=k, k2=k))
    scale = _sums(whole, live, asked, texts)
    return [
        tuple(
            value / scale[name]
            for name, value in _sums(variant, live, asked, texts).items()
            if scale.get(name)
        )
        for variant in variants
    ]


def _sums(
    variant: Variant, live: Any, asked: AskedModel, texts: Sequence[Sequence[int]]
) -> dict[str, float]:
    from moeprune.observe.layers import moe_layers
    from moeprune.observe.placed import input_device
    from moeprune.routing.weight_sums import weight_sums

    layout = asked.routed
    looked_up = {rule.row for rule in layout.tensors.values() if rule.role == "table"}
    routers = {
        f"{number}": layer.router
        for number, layer in enumerate(moe_layers(live, layout))
        if layer.row not in looked_up  # they stay native under every policy
    }
    with applied(variant, live, asked):
        return weight_sums(live, routers, texts, device=input_device(live))

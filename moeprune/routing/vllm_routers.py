"""The routers of vLLM that the plugin puts together: k₁ experts, weighed by their top k₂.

vLLM's own routers are built with k₁ and with k₂ and put together by the one rule, so softmax,
sigmoid, selection bias, groups and scales stay vLLM's. The result goes in as a
``custom_routing_function``, vLLM's own way for a router of one's own.

T tokens.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from moeprune.errors import UnsupportedModelError
from moeprune.routing.rule import reroute
from moeprune.routing.vllm_block import ServedBlock, ranks


@dataclass(slots=True)
class Building:
    """A model with the block, while vLLM builds it, and what became of its MoE layers."""

    block: ServedBlock
    layer: str = ""  # the MoE layer that is being built and is to be rerouted
    rerouted: list[str] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)  # which experts run is looked up
    outside: list[str] = field(default_factory=list)  # routed by the model code of transformers


# A model is built within one call, in which vLLM calls the other functions.
BUILDING: ContextVar[Building | None] = ContextVar("moeprune_building", default=None)


def router_factory(original: Callable[..., Any], unknown: Sequence[str]) -> Callable[..., Any]:
    """Wrap the factory of routers: one of vLLM's own for k₁ and one for k₂, put together."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        building = BUILDING.get()
        if building is None or not building.layer:
            return original(*args, **kwargs)
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        experts = given.get("num_logical_experts") or given["global_num_experts"]
        renormalises = _renormalises(building, given)
        groups = None
        if given.get("use_grouped_topk") and experts % given["num_expert_group"] == 0:
            groups = (given["num_expert_group"], given["topk_group"])
        k1, k2 = ranks(
            building.block,
            experts=experts,
            groups=groups,
            renormalises=renormalises,
            biased=given.get("e_score_correction_bias") is not None,
        )
        routers = {k: original(**{**given, "top_k": k, "eplb_state": None}) for k in {k1, k2 or k1}}
        return original(
            top_k=k1,
            global_num_experts=given["global_num_experts"],
            renormalize=given.get("renormalize", True),
            eplb_state=given.get("eplb_state"),
            custom_routing_function=functools.partial(
                _route, routers, k1=k1, k2=k2, renormalises=renormalises, scale=_scale(given)
            ),
        )

    return make


def _route(
    routers: dict[int, Any],
    hidden_states: Any,
    gating_output: Any,
    topk: int,
    renormalize: bool,
    *,
    k1: int,
    k2: int | None,
    renormalises: bool,
    scale: float,
) -> tuple[Any, Any]:
    """(T, k₁) weights and ids, by vLLM's own routers; called as vLLM calls routing functions."""

    def run(k: int) -> tuple[Any, Any, Any]:
        weights, ids = routers[k]._compute_routing(hidden_states, gating_output, None)
        if ids.shape[-1] != k:
            raise UnsupportedModelError(
                f"{type(routers[k]).__name__} gives {ids.shape[-1]} experts when asked for {k}: "
                "vLLM routes this model in a way that the moeprune plugin does not know."
            )
        return gating_output, weights, ids

    # Whether the kernels behind the routers sort is not theirs to promise.
    _, weights, ids = reroute(
        run, k1=k1, k2=k2, renormalises=renormalises, in_order=False, scale=scale
    )
    return weights, ids


def _renormalises(building: Building, given: dict[str, Any]) -> bool:
    stated, here = building.block.renormalises, bool(given.get("renormalize", True))
    if stated is None or given.get("custom_routing_function") is not None:
        return here if stated is None else stated
    if stated != here:
        raise UnsupportedModelError(
            f"{building.layer}: the model {'divides' if stated else 'does not divide'} the weights "
            f"by their sum, and vLLM's code {'does' if here else 'does not'}. This version of vLLM "
            "cannot serve it with k1 and k2."
        )
    return here


def _scale(given: dict[str, Any]) -> float:
    """The factor that vLLM's router applies itself: only some of its routers do."""
    applies = (
        given.get("use_grouped_topk")
        or given.get("e_score_correction_bias") is not None
        or given.get("scoring_func") == "sqrtsoftplus"
    )
    return float(given.get("routed_scaling_factor", 1.0)) if applies else 1.0

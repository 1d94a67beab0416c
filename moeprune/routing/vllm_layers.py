"""What the plugin does around the MoE layers of a model with the block, while vLLM builds it."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from moeprune.errors import UnsupportedModelError
from moeprune.routing.vllm_block import ServedBlock, served_block, stating
from moeprune.routing.vllm_routers import BUILDING, Building

log = logging.getLogger("vllm.moeprune")


def model_builder(original: Callable[..., Any], unknown: Sequence[str]) -> Callable[..., Any]:
    """Wrap the building of a model: notes the block, and checks at the end that it is honoured."""

    @functools.wraps(original)
    def build(*args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
        config = arguments.get("model_config") or arguments["vllm_config"].model_config
        block = served_block(config.hf_config)
        # A model within a model (the language model of one that sees) is built by such a call.
        if block is None or BUILDING.get() is not None:
            return original(*args, **kwargs)
        # vLLM keeps what it compiled under a hash of its config: not the same without the plugin.
        further = getattr(arguments["vllm_config"], "additional_config", None)
        if isinstance(further, dict):
            further["moeprune"] = asdict(block)
        building = Building(block)
        token = BUILDING.set(building)
        try:
            model = original(*args, **kwargs)
        finally:
            BUILDING.reset(token)
        if unknown:  # known only now: the model's own code imports most of what is wrapped
            raise UnsupportedModelError(
                "config.json has a moeprune block, and this vLLM is not one that moeprune knows "
                f"({', '.join(unknown)}). Update moeprune."
            )
        if getattr(config, "runner_type", None) != "draft":  # what drafts changes no answer
            _check(building, model)
        return model

    return build


def layer_maker(original: Callable[..., Any], unknown: Sequence[str]) -> Callable[..., Any]:
    """Wrap the loop over decoder layers: the config states each layer's own number of experts."""

    @functools.wraps(original)
    def make(
        num_hidden_layers: int, layer_fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        building = BUILDING.get()
        if building is None or not building.block.counts:
            return original(num_hidden_layers, layer_fn, *args, **kwargs)
        from vllm.config import get_current_vllm_config

        model_config = get_current_vllm_config().model_config
        configs = (model_config.hf_config, model_config.hf_text_config)
        block = building.block

        def own(*args: Any, **kwargs: Any) -> Any:
            name = kwargs["prefix"] if "prefix" in kwargs else args[0]
            count = block.count_of(name)
            with stating(configs, count or block.widest, widest=block.widest):
                return layer_fn(*args, **kwargs)

        return original(num_hidden_layers, own, *args, **kwargs)

    return make


def moe_factory(original: Callable[..., Any], unknown: Sequence[str]) -> Callable[..., Any]:
    """Wrap the factory of MoE layers: k₁ is what the whole layer is built for."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        building = BUILDING.get()
        if building is None:
            return original(*args, **kwargs)
        bound = inspect.signature(original).bind(*args, **kwargs)
        given = bound.arguments
        name = given.get("prefix", "")
        _set_count(building.block, name, given)
        if building.block.k1 is None:
            return original(*bound.args, **bound.kwargs)
        if "moe_state" in (given.get("runner_args") or {}):
            building.outside.append(name)
            return original(*bound.args, **bound.kwargs)
        if given.get("hash_indices_table") is not None:
            building.looked_up.append(name)
            return original(*bound.args, **bound.kwargs)
        _check_layer(name, given)
        # Buffers and kernels are sized by it; the routers get k₁ and k₂ below.
        given["top_k"] = building.block.k1
        building.layer = name
        try:
            runner = original(*bound.args, **bound.kwargs)
        finally:
            building.layer = ""
        # On this one layer: a kernel that also routes would never ask its router.
        if not hasattr(runner.routed_experts, "forward_monolithic"):
            raise UnsupportedModelError(f"{name}: moeprune does not know this version of vLLM.")
        runner.routed_experts.forward_monolithic = functools.partial(_refuse_kernel, runner)
        building.rerouted.append(name)
        return runner

    return make


def _set_count(block: ServedBlock, name: str, given: dict[str, Any]) -> None:
    """A layer has its own number of experts, or is refused before its weights do not fit."""
    count = block.count_of(name)
    if count is None:
        return
    if given.get("enable_eplb"):
        raise UnsupportedModelError(
            "layers with different numbers of experts cannot be balanced over ranks: serve the "
            "model without --enable-eplb."
        )
    if given["num_experts"] == count:
        return
    module = getattr(given.get("routed_experts_cls"), "__module__", "")
    if ".models.transformers" not in module:
        raise UnsupportedModelError(
            f"{name}: vLLM builds {given['num_experts']} experts where config.json states {count}; "
            "its code of this model does not build layers one by one. Serve it with --model-impl "
            "transformers --trust-remote-code."
        )
    # There the layer is the family's own, built for its count, and vLLM replaces its experts.
    given["num_experts"] = count


def _check_layer(name: str, given: dict[str, Any]) -> None:
    """Refuse what k₁ and k₂ cannot be put on top of."""
    reasons = {
        "it brings a router of its own": given.get("router") is not None,
        "its weights act on what experts read": given.get("apply_router_weight_on_input"),
        "it has experts without weights": given.get("zero_expert_type") is not None,
        "it routes images apart": given.get("bias_vl") is not None,
        "it appends shared experts to the choice (VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS=0)": (
            given.get("fuse_shared_experts") and given.get("n_shared_experts")
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedModelError(f"{name} cannot be served with k1 and k2: {reason}.")


def _refuse_kernel(runner: Any, *args: Any, **kwargs: Any) -> Any:
    method = type(runner.routed_experts.quant_method).__name__
    raise UnsupportedModelError(
        f"{runner.layer_name}: the kernel of {method} routes by itself and knows no k1 and k2. "
        "Choose another one (--moe-backend)."
    )


def _check(building: Building, model: Any) -> None:
    """Every MoE layer does what the block says, or the model is not served."""
    block, kind = building.block, type(model).__name__
    if block.k1 is None:
        log.info("moeprune: %s with its own number of experts in each layer.", kind)
        return
    # The code in the folder marks each router that it has rerouted.
    own_code = sum(name.endswith("moeprune_k2") for name, _ in model.named_buffers())
    if building.outside and not own_code:
        raise UnsupportedModelError(
            f"config.json asks for k1 = {block.k1} and k2 = {block.k2}, and {kind} routes by code "
            "that knows neither. Add --trust-remote-code, or leave out --model-impl transformers."
        )
    if not building.rerouted and not own_code:
        raise UnsupportedModelError(
            f"config.json asks for k1 = {block.k1} and k2 = {block.k2}, and vLLM's {kind} has no "
            "router that the moeprune plugin reaches. Serve it with --model-impl transformers "
            "--trust-remote-code, or with its own routing: VLLM_PLUGINS=''."
        )
    log.info(
        "moeprune: k1 = %d and k2 = %d in %d MoE layers of %s%s%s.",
        block.k1,
        block.k2,
        len(building.rerouted) + own_code,
        kind,
        ", by the code in its folder" if own_code else "",
        f"; {len(building.looked_up)} look their experts up" if building.looked_up else "",
    )

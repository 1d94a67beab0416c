"""One model with its experts on several processes, by the expert parallelism of transformers.

Each process holds a part of every layer's experts, reads all texts and runs the others of its
experts' tokens nowhere; the outputs of all parts are added up after each layer. So the sums that
belong to experts come from the process that holds them, those that belong to tokens from any one.

Everything but the experts is whole in each process: attention in parts needs heads that can be
divided, and is small beside the experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from moeprune.core.layout import MoeLayout
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.observe.layers import moe_layers

# Those that dispatch through transformers' registry, behind which the experts are spread.
OBSERVERS = ("function", "probabilities")
_WAY_OUT = "Leave --expert-parallel out: each process then holds the whole model."


def check_spread(layout: MoeLayout, *, parts: int, world: int, device: str | None) -> None:
    """Check that a model's experts can be spread, as far as can be said before it is loaded.

    Args:
        layout: of the checkpoint.
        parts: processes that share the experts.
        world: processes of the launch.
        device: that the user named.

    Raises:
        UsageError: the numbers do not go together, or a device is named.
        UnsupportedModelError: calibration does not see the experts of this family there.
    """
    if parts < 1:
        raise UsageError(f"--expert-parallel {parts} must be at least 1.")
    if parts == 1:
        return
    if parts != world:
        raise UsageError(
            f"--expert-parallel {parts} takes a launch of {parts} processes, and this one has "
            f"{world}. Start as many (torchrun --nproc-per-node {parts}); several such launches "
            "share the texts by --shard."
        )
    if device is not None:
        raise UsageError(
            f"--device {device} does not go with --expert-parallel: each process takes the GPU of "
            "its number, or the CPU where there is none. Leave it out."
        )
    if layout.observer not in OBSERVERS:
        raise UnsupportedModelError(
            f"calibration cannot see the experts of family {layout.model_type} while they are "
            f"spread over processes. {_WAY_OUT}"
        )
    for layer, experts in zip(layout.layer_ids, layout.num_experts, strict=True):
        if experts % parts:
            raise UsageError(
                f"--expert-parallel {parts} does not divide the {experts} experts of layer "
                f"{layer}. Give a number that does."
            )


def spreading(config: Any, auto: Any, *, parts: int, trust_remote_code: bool) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that spread the experts and nothing else.

    Args:
        config: of the model.
        auto: the class that loads it.
        parts: processes.
        trust_remote_code: see :func:`moeprune.observe.load.load_causal_lm`.

    Raises:
        UnsupportedModelError: transformers has no plan for this model, or it is quantised.
    """
    from transformers.distributed import DistributedConfig

    kind = config.model_type
    text = config.get_text_config()
    if getattr(config, "quantization_config", getattr(text, "quantization_config", None)):
        raise UnsupportedModelError(
            f"the experts of a quantised checkpoint are not spread. {_WAY_OUT}"
        )
    with torch.device("meta"):
        model = auto.from_config(config, trust_remote_code=trust_remote_code)
    if "ep_dispatch_experts" not in (model.ep_plan or {}).values():
        raise UnsupportedModelError(
            f"transformers has no plan that spreads the experts of model type {kind}. {_WAY_OUT}"
        )
    # Without any rule transformers takes its own, which also cuts attention, or none at all.
    rules = model.tp_plan or model.ep_plan
    return {
        "distributed_config": DistributedConfig(
            tp_size=parts,
            ep_size=parts,
            tp_plan=dict.fromkeys(rules, "replicate"),
            ep_implementation="all_reduce",
        )
    }


def check_read(path: Path, report: Mapping[str, Any]) -> None:
    """Check that transformers read a spread model as it would read a whole one.

    Args:
        path: the checkpoint.
        report: of loading.

    Raises:
        UnsupportedModelError: it takes weights for others, as it does where files hold experts
            transposed.
    """
    for key, *_ in sorted(report["mismatched_keys"], key=str):
        raise UnsupportedModelError(
            f"{path}: transformers does not read {key} rightly while experts are spread. {_WAY_OUT}"
        )


def check_held(model: Any, layout: MoeLayout, *, parts: int) -> None:
    """Check that every layer's experts are spread as asked, once the model is loaded.

    Raises:
        UnsupportedModelError: they are not.
    """
    for layer in moe_layers(model, layout):
        if layer.held is None or len(layer.held) * parts != layer.num_experts:
            raise UnsupportedModelError(
                f"layer {layer.layer}: transformers does not spread its experts. {_WAY_OUT}"
            )

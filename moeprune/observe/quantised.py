"""Load a quantised checkpoint as plain numbers, or not at all.

transformers has its own reader for each stored format. Some of them keep the packed numbers on a
GPU, which an observer cannot read, and some leave a scale out and go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from moeprune.errors import CheckpointError, UnsupportedModelError

# What the numbers of a weight depend on. Scales of activations and of caches are no part of it.
_COMPANION = re.compile(
    r"(?:[._](?:blocks|scales?|scale_inv|scale_2|global_scale|zero_point|g_idx|packed|shape|absmax)"
    r"|\.(?:qweight|qzeros|qscale_weight|SCB)|\.weight\.[a-z_0-9.]+)$"
)
_ACTIVATION = re.compile(r"[._](?:input|activation|k|v|q|output|act)_(?:global_)?scale$")


def dequantising(config: Any) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that turn the checkpoint's weights into plain numbers.

    Args:
        config: the model's config as transformers reads it.

    Raises:
        UnsupportedModelError: transformers cannot turn this format back.
    """
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        settings = getattr(config.get_text_config(), "quantization_config", None)
    if settings is None:
        return {}
    from transformers import CompressedTensorsConfig, FineGrainedFP8Config, Mxfp4Config

    method = settings.get("quant_method") if isinstance(settings, dict) else settings.quant_method
    method = str(getattr(method, "value", method))
    makers = {
        "fp8": FineGrainedFP8Config,
        "mxfp4": Mxfp4Config,
        "compressed-tensors": CompressedTensorsConfig,
    }
    if method == "bitsandbytes" and _packed_in_four_bits(settings):
        # moeprune's reader takes it from the config that says how the weights are stored.
        stated = settings if isinstance(settings, dict) else settings.to_dict()
        config.quantization_config = {**stated, "dequantize": True}
        return {"config": config}
    if method == "compressed-tensors" and find_spec("compressed_tensors") is None:
        raise UnsupportedModelError(
            "the checkpoint is stored in the format of compressed-tensors, and that package is not "
            "installed. Install it: pip install compressed-tensors"
        )
    if method not in makers:
        raise UnsupportedModelError(
            f"the checkpoint is quantised by {method}, which transformers cannot turn back into "
            "plain numbers. Run the unquantised checkpoint."
        )
    return {"quantization_config": makers[method](dequantize=True)}


def _packed_in_four_bits(settings: Any) -> bool:
    stated = settings if isinstance(settings, dict) else settings.to_dict()
    return bool(stated.get("load_in_4bit"))


def one_dtype(model: Any) -> None:
    """Give dequantised experts the number type that the model computes in.

    Some readers leave the type of the scales. What is float32 by intent stays.
    """
    import torch

    for name, weight in model.named_parameters():
        if weight.is_meta:  # of a model that is loaded a part at a time: not read yet
            continue
        if "experts" in name.split(".") and weight.dtype in (torch.bfloat16, torch.float16):
            weight.data = weight.data.to(model.dtype)


def expert_square(experts: Any, expert: int) -> float | None:
    """Sum of the squares of one expert's weights (biases not), whatever their arrangement.

    Args:
        experts: the module of all experts: stacked weights, or a module an expert.
        expert: its number.

    Returns:
        The sum, or None where the weights are not in memory.
    """
    import torch

    found = [weight[expert] for weight in experts.parameters(recurse=False) if weight.ndim == 3]
    if not found and str(expert) in experts._modules:
        found = [weight for weight in experts._modules[str(expert)].parameters() if weight.ndim > 1]
    if not found or any(weight.is_meta for weight in found):
        return None
    return sum(float(weight.detach().to(torch.float64).square().sum()) for weight in found)


def is_activation_scale(name: str) -> bool:
    """Whether a tensor scales activations or a cache, which no plain number depends on."""
    return _ACTIVATION.search(name) is not None


def check_scales_used(path: Path, unexpected: Iterable[str]) -> None:
    """Check that transformers found a place for everything that a weight's numbers depend on.

    Args:
        path: the checkpoint, for the message.
        unexpected: names of tensors that it had no use for.

    Raises:
        CheckpointError: one of them is a scale or the like.
    """
    for name in sorted(unexpected):
        if _COMPANION.search(name):
            raise CheckpointError(
                f"{path}: transformers has no place for {name}, so the weight beside it would be "
                "read without its scale. The stored format is not one that it can load."
            )

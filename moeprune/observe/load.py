"""Load a causal language model whole: every weight from the file, or an error.

transformers fills a weight that it does not find with random numbers and goes on; experts measured
so would decide a plan. Code that comes with a checkpoint runs only where the user allows it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moeprune.errors import CheckpointError, UsageError
from moeprune.observe.layers import ELSEWHERE
from moeprune.observe.quantised import (
    check_scales_used,
    dequantising,
    is_activation_scale,
    one_dtype,
)
from moeprune.observe.quiet import foreign_errors, quiet
from moeprune.observe.spread import check_read, spreading
from moeprune.observe.tokenizer import load_tokenizer
from moeprune.plugins import known

__all__ = ["load_causal_lm", "load_tokenizer"]

DTYPES = {
    "auto": "auto",
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_causal_lm(
    path: Path,
    *,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    expert_parallel: int = 1,
) -> Any:
    """A transformers causal language model in evaluation mode.

    Args:
        path: the checkpoint folder.
        dtype: ``"auto"`` (as stored), ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        device: see :func:`check_device`; ``"auto"`` spreads the model over all devices.
        trust_remote_code: run Python files of the checkpoint.
        expert_parallel: processes that share the experts; each takes its GPU, if there are some.

    Raises:
        CheckpointError: it cannot be loaded, or a weight is missing, of another shape, or an expert
            tensor or a scale has no place in the model.
        UnsupportedModelError: transformers cannot make plain numbers of the stored format.
        UsageError: unknown dtype or device.
    """
    from transformers import AutoConfig

    check_dtype(dtype)
    place = check_device(device)
    with (
        quiet(),
        foreign_errors(
            f"{path}: transformers cannot load the model",
            "Check that the files are complete and that this transformers knows the family.",
            error=CheckpointError,
            also=(ArithmeticError, AssertionError),
        ),
    ):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        plain = dequantising(config)
        auto = auto_class(config)
        if expert_parallel > 1:
            place, placing = (
                None,
                spreading(config, auto, parts=expert_parallel, trust_remote_code=trust_remote_code),
            )
        else:
            placing = {"device_map": "auto"} if place is None else {}
        model, report = auto.from_pretrained(
            path,
            dtype=DTYPES[dtype],
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the report, which names them
            **placing,
            **plain,
        )
        if expert_parallel > 1:
            check_read(path, report)
        check_complete(path, model, report)
        if plain:
            one_dtype(model)
        if type(model).forward is nn.Module.forward:
            # A model that also speaks has no forward pass of its own: its thinker is what reads.
            model = getattr(model, "thinker", model)
        if place is not None:
            model = model.to(place)
    return model.eval()


def load_config(path: Path, *, trust_remote_code: bool = False) -> Any:
    """The configuration of a checkpoint, which loading anything else asks for.

    Raises:
        CheckpointError: transformers cannot read it.
    """
    from transformers import AutoConfig

    with (
        quiet(),
        foreign_errors(
            f"{path}: transformers cannot read config.json",
            "Correct it, or get the original file.",
            error=CheckpointError,
            also=(ArithmeticError, AssertionError),
        ),
    ):
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)


def check_config(path: Path, *, trust_remote_code: bool = False) -> None:
    """Check that transformers can read the configuration.

    Raises:
        CheckpointError: it cannot.
    """
    load_config(path, trust_remote_code=trust_remote_code)


def auto_class(config: Any) -> Any:
    """The causal language model of the family, or the multimodal model that holds it."""
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForMultimodalLM,
    )

    own = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    causal = own or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if causal:
        return AutoModelForCausalLM
    pictures = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if pictures else AutoModelForMultimodalLM


def check_dtype(dtype: str) -> str:
    """The number type, if it is one of ``DTYPES``.

    Raises:
        UsageError: it is not.
    """
    return known(dtype, DTYPES, kind="dtype")


def check_device(device: str | None) -> torch.device | None:
    """The device to run on: a GPU where there is one, else the CPU; None for ``"auto"``.

    Raises:
        UsageError: no such device here.
    """
    if device == "auto":
        return None
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.empty(0, device=name).device
    # AssertionError: how a torch built without CUDA says so.
    except (RuntimeError, AssertionError) as problem:
        raise UsageError(f"device {name!r} cannot be used here; try --device cpu.") from problem
    if place.type == "meta":
        raise UsageError("device 'meta' holds no numbers to compute with; try --device cpu.")
    return place


def decoder_of(model: Any) -> Any:
    """The model without its head, so that logits over the vocabulary are never computed."""
    head = model.get_output_embeddings()
    for candidate in (model.get_decoder(), model.base_model, getattr(model, "model", None)):
        if candidate is None:
            continue
        if head is None or all(module is not head for module in candidate.modules()):
            return candidate
    raise CheckpointError(
        f"{type(model).__name__} has no body apart from its head; it cannot be observed."
    )


def decoder_dtype(model: Any) -> str:
    """The number type the model computes in, as ``--dtype`` spells it."""
    return str(model.dtype).removeprefix("torch.")


def takes(module: Any, name: str) -> bool:
    """Whether the forward pass of ``module`` states a parameter ``name``."""
    return name in inspect.signature(module.forward).parameters


def check_complete(path: Path, model: Any, report: Mapping[str, Any]) -> None:
    """Check that every weight came from the files, and all that matters there went in.

    Args:
        path: the checkpoint, for messages.
        model: loaded from it, or to be.
        report: transformers' ``missing_keys``, ``mismatched_keys`` and ``unexpected_keys``.

    Raises:
        CheckpointError: it did not.
    """
    missing = sorted(str(key) for key in report["missing_keys"])
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{path}: weight {missing[0]}{more} is not in the files, so the model would run on "
            "random numbers. Get the complete checkpoint."
        )
    for key, stored, wanted in sorted(report["mismatched_keys"], key=lambda entry: str(entry[0])):
        raise CheckpointError(
            f"{path}: weight {key} has shape {[*stored]}, config.json makes it {[*wanted]}, so the "
            "model would run on random numbers. The two files are not of one model."
        )
    depth = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    inside: list[str] = []
    for key in sorted(report["unexpected_keys"]):
        layer = re.search(r"\blayers\.(\d+)\.", key)
        # Next-token-prediction layers stand behind the last layer and are never run.
        extra = layer is not None and depth is not None and int(layer[1]) >= depth
        if not extra and not ELSEWHERE.search(key) and not is_activation_scale(key):
            inside.append(key)
    check_scales_used(path, inside)
    for key in inside:
        if "expert" in key:
            raise CheckpointError(
                f"{path}: transformers has no place for {key} and would run without it. The stored "
                "format is not one that it can load."
            )

"""transformers' own model of a checkpoint, made by ``from_pretrained`` itself, without a weight.

What ``from_pretrained`` decides before it reads a weight (class, number type, what stays float32,
quantiser, how stored names and tensors become the model's) is taken from it, so it cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moeprune.errors import CheckpointError
from moeprune.observe.load import DTYPES, auto_class
from moeprune.observe.quantised import dequantising
from moeprune.observe.quiet import foreign_errors, quiet


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A model on the meta device, but for the buffers that no file holds, which are real.

    Attributes:
        path: the checkpoint folder.
        root: the model that the checkpoint's tensors are named for.
        model: the causal language model in it; mostly ``root`` itself.
        load_config: what ``from_pretrained`` would load the weights with.
        plain: whether stored numbers are turned back into plain ones.
        device: where the weights are to go.
    """

    path: Path
    root: Any
    model: Any
    load_config: Any
    plain: bool
    device: torch.device


def skeleton(
    path: Path, *, dtype: str, device: torch.device, trust_remote_code: bool = False
) -> Skeleton:
    """Build the model that :func:`~moeprune.observe.load.load_causal_lm` would load.

    Args:
        path: the checkpoint folder.
        dtype: as there.
        device: where it is to run.
        trust_remote_code: run Python files of the checkpoint.

    Raises:
        CheckpointError: transformers cannot build it.
        UnsupportedModelError: transformers cannot make plain numbers of the stored format.
    """
    from transformers import AutoConfig

    with (
        quiet(),
        foreign_errors(
            f"{path}: transformers cannot build the model without its weights",
            "Check that the files are complete; if so, update transformers, or leave --memory out, "
            "where the model fits.",
            error=CheckpointError,
            also=(ArithmeticError, AssertionError),
        ),
    ):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        plain = dequantising(config)
        with torch.device("meta"):
            kind = type(auto_class(config).from_config(config, trust_remote_code=trust_remote_code))
        taken: list[Any] = []
        root = _without_weights(kind, taken).from_pretrained(
            path,
            dtype=DTYPES[dtype],
            trust_remote_code=trust_remote_code,
            ignore_mismatched_sizes=True,
            **{**plain, "config": own_config(kind, config)},
        )
        root.__class__ = kind
        for name, buffer in root.named_buffers():
            if not buffer.is_meta:
                owner, _, last = name.rpartition(".")
                root.get_submodule(owner)._buffers[last] = buffer.to(device)
    model = root
    if type(model).forward is nn.Module.forward:
        model = getattr(model, "thinker", model)
    return Skeleton(path, root.eval(), model.eval(), taken[0], bool(plain), device)


def _without_weights(kind: Any, taken: list[Any]) -> Any:
    """A class as ``kind``, whose ``from_pretrained`` reads no weight and tells how it would."""
    from transformers.modeling_utils import LoadStateDictInfo

    def load(model: Any, _state: Any, _files: Any, load_config: Any, *_: Any, **__: Any) -> Any:
        taken.append(load_config)
        for tensor in (*model.parameters(), *model.buffers()):
            tensor._is_hf_initialized = True  # or it would be filled with random numbers
        empty = LoadStateDictInfo(
            missing_keys=set(),
            unexpected_keys=set(),
            mismatched_keys=set(),
            error_msgs=[],
            conversion_errors={},
            skipped_pp_keys=set(),
        )
        return empty, None

    return type(
        kind.__name__,
        (kind,),
        {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "_load_pretrained_model": staticmethod(load),
        },
    )


def own_config(kind: Any, config: Any) -> Any:
    """The part of the config that the class takes, as transformers' auto classes choose it."""
    text = config.sub_configs.get("text_config")
    if text is None or getattr(kind, "config_class", None) is not text:
        return config
    part = config.get_text_config()
    if getattr(config, "quantization_config", None) is not None:
        part.quantization_config = config.quantization_config
    return part

"""Load a model with some of its tensors replaced: what it would be if its files held other numbers.

transformers merges and renames what it is given as it does what it reads, so that each tensor is
replaced by its stored name, in every family.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig

from moeprune.errors import CheckpointError
from moeprune.observe.load import DTYPES, auto_class, check_complete, check_device, check_dtype
from moeprune.observe.quiet import foreign_errors, quiet
from moeprune.observe.streamed.skeleton import own_config

Values = Callable[[], npt.NDArray[np.float32]]


class _Computed:
    """A tensor that is there once it is sliced, as safetensors' own are."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def __getitem__(self, which: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._values()))[which]


def load_replaced(
    path: Path,
    *,
    files: Collection[str],
    replaced: Mapping[str, Values],
    without: Collection[str],
    dtype: str,
    device: str | None,
    trust_remote_code: bool,
) -> Any:
    """A causal language model in evaluation mode, with other numbers than its files hold.

    Args:
        path: the checkpoint folder.
        files: its weight files.
        replaced: name of a plain tensor, stored or not -> its values; computed one by one, from
            several threads.
        without: names of stored tensors that are not read; with them goes the quantisation of the
            checkpoint, which must be among what is replaced.
        dtype: see :func:`moeprune.observe.load.load_causal_lm`.
        device: to run on, or ``"auto"``.
        trust_remote_code: run Python files of the checkpoint.

    Raises:
        CheckpointError: it cannot be loaded, or a tensor has no place in the model.
        UsageError: unknown dtype or device.
    """
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
        ExitStack() as stack,
    ):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        auto = auto_class(config)
        for level in (config, config.get_text_config()):
            if getattr(level, "quantization_config", None) is not None:
                del level.quantization_config
        with torch.device("meta"):
            kind = type(auto.from_config(config, trust_remote_code=trust_remote_code))
        tensors: dict[str, Any] = {}
        for file in sorted(files):
            opened = stack.enter_context(safe_open(path / file, framework="pt"))
            for name in opened.keys():  # noqa: SIM118
                if name not in without and name not in replaced:
                    tensors[name] = opened.get_slice(name)
        tensors |= {name: _Computed(values) for name, values in replaced.items()}
        model, report = kind.from_pretrained(
            None,
            config=own_config(kind, config),
            state_dict=tensors,
            dtype=DTYPES[dtype],
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **({"device_map": "auto"} if place is None else {}),
        )
        check_complete(path, model, report)
        if type(model).forward is nn.Module.forward:
            model = getattr(model, "thinker", model)
        if place is not None:
            model = model.to(place)
    return model.eval()

"""Where a model lies: on a device a process, on several, or in part off the devices.

accelerate spreads a model over devices, and keeps what does not fit elsewhere: hooks on the modules
fetch weights before a forward pass and drop them after it. An expert's weights are there while the
module of the experts runs, which is when it is observed.
"""

from __future__ import annotations

from typing import Any

import torch

from moeprune.core.layout import MoeLayout
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.observe.launch import Launch

# Families whose modules read weights of other modules: there the hooks come too late, and some
# compute with what is not there.
_NOT_FETCHED = ("jetmoe", "llama4", "longcat", "module")


def num_gpus() -> int:
    """GPUs that this process sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_of(launch: Launch, device: str | None, *, gpus: int) -> str | None:
    """The device of one process of a launch.

    Args:
        launch: the process.
        device: as the user named it; None: not named.
        gpus: that this machine has.

    Returns:
        A device for :func:`moeprune.observe.load.check_device`.

    Raises:
        UsageError: there is no GPU for this process, or each would take all of them.
    """
    if device is None and launch.cpu:
        return "cpu"
    if launch.world == 1:
        return device
    if device == "auto" and launch.local_world > 1:
        raise UsageError(
            f"--device auto spreads a model over all devices, and each of {launch.local_world} "
            "processes on this machine would do so. Start one a machine, or leave it out."
        )
    if device not in (None, "cuda") or not gpus:
        return device
    if launch.local_rank >= gpus:
        raise UsageError(
            f"this machine has {gpus} GPU{'s' * (gpus > 1)} for {launch.local_world} processes. "
            f"Start {gpus} a machine, or give --device cpu."
        )
    return f"cuda:{launch.local_rank}"


def input_device(model: Any) -> torch.device:
    """Where the tokens that a model reads must lie."""
    device: torch.device = model.device
    if device.type != "meta":
        return device
    # Embeddings that lie elsewhere are fetched to where they are used.
    hook = getattr(model.get_input_embeddings(), "_hf_hook", None)
    place = getattr(hook, "execution_device", None)
    return torch.device("cpu" if place is None else place)


def check_fetched(model: Any, layout: MoeLayout) -> None:
    """Check that a model runs where some of its weights do not lie on its devices.

    Raises:
        UnsupportedModelError: it does not.
    """
    if layout.observer in _NOT_FETCHED and any(weight.is_meta for weight in model.parameters()):
        raise UnsupportedModelError(
            f"the model does not fit the devices of --device auto, and family {layout.model_type} "
            "does not run with weights elsewhere. Take more devices, a smaller --dtype, or "
            "--device cpu."
        )


def check_here(model: Any) -> None:
    """Check that a model has all its weights on its devices, where a backward pass needs them.

    Raises:
        UnsupportedModelError: it has not.
    """
    if any(weight.is_meta for weight in model.parameters()):
        raise UnsupportedModelError(
            "the model does not fit the devices of --device auto, and --loss-aware goes back "
            "through weights that are fetched forward only. Give --memory, which reads it a layer "
            "at a time, or take more devices or a smaller --dtype."
        )

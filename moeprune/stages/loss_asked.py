"""``calibrate --loss-aware``: whether it goes with the rest of a request, and of which tokens."""

from __future__ import annotations

from typing import Any

from moeprune.core.losses import LOSSES, TEMPERATURE
from moeprune.errors import UsageError


def loss_asked(
    loss: str | None,
    *,
    loss_aware: bool,
    temperature: float | None,
    mode: str,
    expert_parallel: int,
) -> dict[str, Any]:
    """What stats say of the loss that is asked for; nothing where none is.

    Args:
        loss: target tokens, as the user names them; None: not said.
        loss_aware: whether a loss is asked for.
        temperature: by which logits are divided; None: not said.
        mode: of calibration.
        expert_parallel: processes that share the experts of one model.

    Returns:
        Nothing, or ``loss`` and ``loss_temperature``.

    Raises:
        UsageError: there is no such loss, or it does not go with the rest.
    """
    if loss is not None and loss not in LOSSES:
        raise UsageError(f"--loss {loss} is neither 'completion' nor 'all'.")
    if not loss_aware:
        if loss is not None:
            raise UsageError(
                f"--loss {loss} says of which tokens --loss-aware takes the loss. Give "
                "--loss-aware too, or leave --loss out."
            )
        if temperature is not None:
            raise UsageError(
                f"--loss-temperature {temperature:g} is of the loss that --loss-aware takes. Give "
                "--loss-aware too, or leave --loss-temperature out."
            )
        return {}
    temperature = TEMPERATURE if temperature is None else temperature
    if not 0.1 <= temperature <= 100:
        raise UsageError(f"--loss-temperature {temperature} is not a number from 0.1 to 100.")
    if mode == "decode" and loss == "all":
        raise UsageError(
            "--loss all takes the loss of prompts too, and decode mode measures what the model "
            "writes. Leave --loss out, or give --mode prefill."
        )
    if expert_parallel > 1:
        raise UsageError(
            "--loss-aware follows the loss back through all experts of a layer, of which "
            "--expert-parallel gives each process a part. Leave one of them out; with --memory, a "
            "model of any size is read a layer at a time."
        )
    return {"loss": loss or "completion", "loss_temperature": float(temperature)}

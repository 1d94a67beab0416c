"""``calibrate --loss-aware``: whether it goes with the rest of a request, and of which tokens."""

from __future__ import annotations

from moeprune.errors import UsageError

LOSSES = ("completion", "all")
"""Target tokens: of rows with a prompt, the answers alone; or all of every row."""


def loss_asked(
    loss: str | None, *, loss_aware: bool, mode: str, expert_parallel: int
) -> str | None:
    """Which tokens are targets of the loss that is asked for, None where none is.

    Args:
        loss: as the user names it; None: not said.
        loss_aware: whether a loss is asked for.
        mode: of calibration.
        expert_parallel: processes that share the experts of one model.

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
        return None
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
    return loss or "completion"

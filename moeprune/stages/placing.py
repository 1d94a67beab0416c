"""Where a calibration runs, and in which numbers: checked before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprune.core.layout import MoeLayout

if TYPE_CHECKING:
    from moeprune.observe.launch import Launch


def check_place(
    layout: MoeLayout,
    launch: Launch,
    *,
    dtype: str,
    device: str | None,
    expert_parallel: int,
    batch_tokens: int | None,
) -> str | None:
    """The device of this process.

    Args:
        layout: of the model.
        launch: who this process is.
        dtype: as the user names it.
        device: as the user names it; None: not said.
        expert_parallel: processes that share the experts of one model.
        batch_tokens: of a batch; None: not said.

    Raises:
        UsageError: there is no such device or number type, or they do not go together.
    """
    from moeprune.observe.batch_size import DEFAULT
    from moeprune.observe.batches import check_batch_tokens
    from moeprune.observe.load import check_device, check_dtype
    from moeprune.observe.placed import device_of, num_gpus
    from moeprune.observe.spread import check_spread

    check_dtype(dtype)
    check_spread(layout, parts=expert_parallel, world=launch.world, device=device)
    place = device_of(launch, device, gpus=num_gpus())
    check_device(place)
    check_batch_tokens(DEFAULT if batch_tokens is None else batch_tokens)
    return place

"""The number type that a checkpoint is run in where the user names none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.stages.journal import Journal
from moeprune.stages.larger import BESIDE

_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_PACKED = {"U8": 2, "I32": 8, "I64": 16}  # weights in one number, at most


def number_type(
    index: CheckpointIndex,
    asked: str,
    journal: Journal,
    *,
    device: Any,
    memory: int | None,
    processes: int,
    agree: Callable[[bool], bool],
    on_story: Callable[[str], None],
) -> str:
    """The type to load a model in, as ``--dtype`` spells it; ``"auto"`` is the stored one.

    Args:
        index: the checkpoint.
        asked: what the user says; ``"auto"``: nothing.
        journal: what an interrupted run computed in; it goes on in the same.
        device: where it is to run, of torch; None: on several.
        memory: bytes to which it is limited, None: to what there is.
        processes: that share the memory of this machine.
        agree: whether any process of the launch wishes something: all compute in one type.
        on_story: told of a type other than the stored one, and of a stored one that is slow.
    """
    from moeprune.observe.compute_dtype import choose
    from moeprune.observe.memory import small_caches
    from moeprune.observe.streamed.memory import allowed_memory, device_memory

    if asked != "auto":
        return asked
    stored = stored_type(index)
    settled: str | None = journal.settled("number type")
    if settled is None:
        room = 0  # of a model that is read a layer at a time
        if memory is None:
            own = None if device is None else device_memory(device)
            room = (own or allowed_memory() // processes) - BESIDE
        wide = _bytes_wide(index)
        # What multiplies first decides how much memory libraries will take.
        with small_caches() if wide // 2 > room else nullcontext():
            choice = choose(stored, device=device, bytes_wide=wide, room=room)
        if choice.reason:
            on_story(choice.reason)
        dtype = choice.dtype
    else:
        dtype = "auto" if settled == stored else settled
    return "float32" if agree(dtype == "float32") else dtype


def stored_type(index: CheckpointIndex) -> str:
    """What config.json states, or else the type of most of the weights."""
    inner = index.config.get("text_config")
    levels = [index.config, inner if isinstance(inner, dict) else {}]
    for stated in (level.get(key) for level in levels for key in ("dtype", "torch_dtype")):
        if isinstance(stated, str):
            return stated.removeprefix("torch.")
    sizes: Counter[str] = Counter()
    for info in index.tensors.values():
        if info.dtype in _NAMES:
            sizes[info.dtype] += info.nbytes
    return _NAMES[min(sizes, key=lambda name: (-sizes[name], name))] if sizes else "float32"


def plain_type(index: CheckpointIndex) -> str:
    """The type of a checkpoint's weights once they are plain numbers, as safetensors spells it."""
    spelled = {name: dtype for dtype, name in _NAMES.items()}
    return spelled.get(stored_type(index), "BF16")


def _bytes_wide(index: CheckpointIndex) -> int:
    """Of the model in float32; of quantised weights, no less than that."""
    return 4 * sum(
        math.prod(info.shape) * _PACKED.get(info.dtype, 1) for info in index.tensors.values()
    )

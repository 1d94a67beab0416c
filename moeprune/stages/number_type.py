"""The number type that a checkpoint is run in where the user names none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.stages.journal import Journal

_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_PACKED = {"U8": 2, "I32": 8, "I64": 16}  # weights in one number, at most


def number_type(
    index: CheckpointIndex,
    asked: str,
    journal: Journal,
    *,
    device: Any,
    agree: Callable[[bool], bool],
    on_story: Callable[[str], None],
) -> str:
    """The type to load a model in, as ``--dtype`` spells it; ``"auto"`` is the stored one.

    Args:
        index: the checkpoint.
        asked: what the user says; ``"auto"``: nothing.
        journal: what an interrupted run computed in; it goes on in the same.
        device: where it is to run, of torch; None: on several.
        agree: whether any process of the launch wishes something: all compute in one type.
        on_story: told of a type other than the stored one, and of a stored one that is slow.
    """
    from moeprune.observe.compute_dtype import choose
    from moeprune.observe.memory import free_memory, small_caches

    if asked != "auto":
        return asked
    stored = stored_type(index)
    settled: str | None = journal.settled("number type")
    if settled is None:
        room = free_memory(device)
        with small_caches():  # it is the first to multiply
            choice = choose(stored, device=device, bytes_wide=_bytes_wide(index), room=room)
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


def _bytes_wide(index: CheckpointIndex) -> int:
    """Of the model in float32; of quantised weights, no less than that."""
    return 4 * sum(
        math.prod(info.shape) * _PACKED.get(info.dtype, 1) for info in index.tensors.values()
    )

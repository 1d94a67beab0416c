"""How much memory a checkpoint takes, by what its files hold."""

from __future__ import annotations

from moeprune.checkpoint.index import CheckpointIndex


def least_bytes(index: CheckpointIndex, dtype: str) -> int:
    """Bytes of the weights in memory, at least: a stored code may become a larger number.

    Args:
        index: of the checkpoint.
        dtype: as the user names it.
    """
    width = {"float32": 4, "bfloat16": 2, "float16": 2}.get(dtype)
    wide = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
    total = 0
    for info in index.tensors.values():
        stored = wide.get(info.dtype)
        total += info.nbytes // stored * width if width and stored else info.nbytes
    return total

"""Stored bytes of a plain type as a torch tensor, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moeprune.errors import UnsupportedModelError

if TYPE_CHECKING:
    import torch

Bytes = bytes | bytearray | memoryview

_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def tensor_of(data: Bytes, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """The tensor that stored bytes are.

    Args:
        data: as they lie on disk. Bytes that may be written to (a bytearray) are not copied; the
            tensor then shares them. Others are, since torch has no tensor that is read only.
        dtype: as safetensors spells it: F64, F32, F16 or BF16.
        shape: of the tensor.

    Raises:
        UnsupportedModelError: another type.
    """
    import torch

    if dtype not in _NAMES:
        raise UnsupportedModelError(
            f"it is stored as {dtype}, which is not a plain type of weights (F64, F32, F16, BF16)."
        )
    return raw_bytes(data).view(getattr(torch, _NAMES[dtype])).reshape(tuple(shape))


def raw_bytes(data: Bytes) -> torch.Tensor:
    """Bytes as a tensor of uint8; not copied where :func:`tensor_of` does not."""
    import torch

    view = memoryview(data).cast("B")
    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)

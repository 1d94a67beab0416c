"""A stored tensor, read when transformers asks for its numbers."""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import EllipsisType

import torch

from moeprune.errors import CheckpointError, UsageError

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}

_LINE = 64  # bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor's bytes lie. To transformers it is a slice of a safetensors file.

    Attributes:
        file: path of the shard.
        start: first byte, from the start of the file.
        dtype: as safetensors spells it.
        shape: of the tensor.
    """

    file: Path
    start: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * self._type.itemsize

    @property
    def _type(self) -> torch.dtype:
        if self.dtype not in DTYPES:
            raise CheckpointError(
                f"{self.file}: number type {self.dtype} cannot be read a layer at a time. Load the "
                "model whole, without --memory."
            )
        return DTYPES[self.dtype]

    def get_shape(self) -> list[int]:
        """As of a safetensors slice."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """As of a safetensors slice."""
        return self.dtype

    def __getitem__(self, key: EllipsisType) -> torch.Tensor:
        """All of the tensor, in memory of its own.

        Raises:
            CheckpointError: the file ends too early.
            UsageError: it cannot be read.
        """
        if not self.nbytes:
            return torch.empty(self.shape, dtype=self._type)
        # A map of its own goes back to the system at once when the tensor goes; the allocator of C
        # keeps pieces of this size, some of every layer.
        # And it lies as the file does in a page: where numbers begin in a line of the cache changes
        # the last bits of what a processor makes of them, and a loaded model maps the file.
        lead = self.start % _LINE
        if sys.platform == "win32":
            room = mmap.mmap(-1, lead + self.nbytes)
        else:
            room = mmap.mmap(-1, lead + self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            with self.file.open("rb", buffering=0) as file:
                file.seek(self.start)
                view = memoryview(room)[lead:]
                while view and (count := file.readinto(view)):
                    view = view[count:]
        except OSError as problem:
            # No fault of the model, which a CheckpointError says: what is measured stays.
            raise UsageError(
                f"{self.file} cannot be read: {problem.strerror or problem}. See that it can, and "
                "start the same command again."
            ) from problem
        if view:
            raise CheckpointError(
                f"{self.file} ends before its last tensor does. Download the checkpoint again."
            )
        return torch.frombuffer(room, dtype=self._type, offset=lead).reshape(self.shape)

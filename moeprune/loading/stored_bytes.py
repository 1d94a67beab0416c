"""Where the bytes of a checkpoint's tensors lie, and reading them straight into memory.

A loader that maps a file into memory and then copies from it holds everything twice for a while;
what is read from the file into its place is there once.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class StoredBytes:
    """The bytes of one tensor.

    Attributes:
        file: path of the safetensors file.
        start: where they begin in it.
        count: how many they are.
    """

    file: str
    start: int
    count: int


def stored_bytes(files: Iterable[str] | None) -> dict[str, StoredBytes]:
    """Name -> place, of every tensor of these files; empty where they are of another format."""
    found: dict[str, StoredBytes] = {}
    for file in files or ():
        if not str(file).endswith(".safetensors"):
            return {}
        with Path(file).open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                found[name] = StoredBytes(str(file), 8 + length + start, end - start)
    return found


class ByteReader:
    """Reads places of files; a context manager that closes what it opened."""

    def __init__(self) -> None:
        self._files: dict[str, Any] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "ByteReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def into(self, place: StoredBytes, target_G: torch.Tensor) -> None:
        """Fill a tensor of bytes, contiguous and on the CPU.

        Raises:
            ValueError: the file holds another number of bytes there.
        """
        if place.file not in self._files:
            path = Path(place.file)
            self._files[place.file] = self._open.enter_context(path.open("rb", buffering=0))
        opened = self._files[place.file]
        opened.seek(place.start)
        array: Any = target_G.numpy()
        left = memoryview(array)
        if len(left) != place.count:
            raise ValueError(f"{place.file}: {place.count} bytes are stored, {len(left)} expected.")
        while len(left):
            got = opened.readinto(left)
            if not got:
                raise ValueError(f"{place.file} ended early.")
            left = left[got:]

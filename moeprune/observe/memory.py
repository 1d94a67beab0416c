"""How much memory there is for a model, and what libraries take of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psutil
import torch

# oneDNN and its layer in torch keep code for the last 1024 shapes each, and every expert has
# another number of tokens: half a gigabyte and more. These are read at the first use.
_CACHES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
_SHAPES = "16"


@contextlib.contextmanager
def small_caches() -> Iterator[None]:
    """Ask libraries for small caches, where the environment says nothing of them."""
    mine = [name for name in _CACHES if name not in os.environ]
    os.environ.update(dict.fromkeys(mine, _SHAPES))
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)


def free_memory(device: torch.device | None) -> int:
    """Bytes that are free where a model is to lie; None: not a GPU."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)

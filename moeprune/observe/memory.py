"""What libraries take of the memory."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

# oneDNN and its layer in torch keep code for the last 1024 shapes each, and every expert has
# another number of tokens: a few hundred megabytes. These are read at the first use.
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


def give_back() -> None:
    """Free what no longer has a name, on GPUs too: the next model needs the room."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

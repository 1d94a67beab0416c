"""The tensors that a waiting forward pass holds, found in the frames of its suspended calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn


def own_storages(frame: Any) -> list[torch.UntypedStorage]:
    """The memory that nothing outside of the pass refers to.

    A buffer of the model, a mask that is kept for all passes or what another pass reads too has
    more references than are found here, and is left out.

    Args:
        frame: the innermost of the suspended ones.
    """
    tensors: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    for values in _locals(frame):
        for tensor in _tensors(list(values), seen):
            tensors[id(tensor)] = tensor
    by_storage: dict[int, list[torch.Tensor]] = defaultdict(list)
    for tensor in tensors.values():
        if tensor.device.type != "meta" and tensor.layout is torch.strided:
            by_storage[tensor.untyped_storage()._cdata].append(tensor)
    found = []
    for sharing in by_storage.values():
        storage = sharing[0].untyped_storage()
        if not storage.nbytes() or not storage.resizable():
            continue
        # One reference a tensor, and the one of `storage`.
        if torch._C._storage_Use_Count(storage._cdata) == len(sharing) + 1:
            found.append(storage)
    return found


def _locals(frame: Any) -> Iterator[tuple[Any, ...]]:
    while frame is not None:
        values = frame.f_locals
        yield tuple(values.values())
        if isinstance(values, dict):
            values.clear()  # a copy, before Python 3.13: it would keep what the frame lets go
        frame = frame.f_back


def _tensors(values: list[Any], seen: set[int]) -> Iterator[torch.Tensor]:
    while values:
        value = values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if type(value) is torch.Tensor:
                yield value
        elif isinstance(value, Mapping):
            values.extend(value.values())
        elif isinstance(value, list | tuple | set):
            values.extend(value)
        elif type(value).__module__.startswith("transformers.") and not isinstance(
            value, nn.Module | type
        ):
            values.extend(getattr(value, "__dict__", {}).values())  # caches

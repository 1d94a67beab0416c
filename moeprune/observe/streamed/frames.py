"""The tensors that a waiting forward pass holds, found in the frames of its suspended calls."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from moeprune.observe.loss.kept import Kept


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """Memory that nothing outside of a pass refers to.

    Attributes:
        live: what the pass may use as soon as it goes on.
        resting: what it uses once it asks for it; the oldest first.
        derived: of these, places (``_cdata``) of what depends on the pass's own text.
        kept: where it asks.
    """

    live: list[torch.UntypedStorage]
    resting: list[torch.UntypedStorage]
    derived: frozenset[int]
    kept: list[Kept]


def held_of(frame: Any) -> Held:
    """What a pass holds.

    A buffer of the model, a mask that is kept for all passes or what another pass reads too has
    more references than are found here, and is left out.

    Args:
        frame: the innermost of the suspended ones.
    """
    live: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    kept: list[Kept] = []
    for values in _locals(frame):
        for tensor in _tensors(list(values), seen, kept):
            live[id(tensor)] = tensor
    resting: dict[int, torch.Tensor] = {}
    seen = set()
    for item in kept:
        last = len(item) - 1
        for number, entry in enumerate(item):
            found = live if item.pinned or (number == last and not item.turned) else resting
            for tensor in _tensors([entry], seen, []):
                found[id(tensor)] = tensor
    used = {tensor.untyped_storage()._cdata for tensor in live.values() if _has_memory(tensor)}
    by_storage: dict[int, list[torch.Tensor]] = defaultdict(list)
    for tensor in (live | resting).values():
        if _has_memory(tensor):
            by_storage[tensor.untyped_storage()._cdata].append(tensor)
    parts: tuple[list[torch.UntypedStorage], list[torch.UntypedStorage]] = [], []
    derived = set()
    for place, sharing in by_storage.items():
        storage = sharing[0].untyped_storage()
        if not storage.nbytes() or not storage.resizable():
            continue
        # One reference a tensor, and the one of `storage`.
        if torch._C._storage_Use_Count(storage._cdata) == len(sharing) + 1:
            parts[place not in used].append(storage)
            if any(tensor.requires_grad for tensor in sharing):
                derived.add(place)
    return Held(parts[0], parts[1], frozenset(derived), kept)


def own_storages(frame: Any) -> list[torch.UntypedStorage]:
    """All of :func:`held_of`."""
    held = held_of(frame)
    return held.live + held.resting


def tensors_in(entry: Any) -> Iterable[torch.Tensor]:
    """Those of an entry of a ``Kept``."""
    return _tensors([entry], set(), [])


def _is_ours(value: Any) -> bool:
    """Whether it is a dataclass of this package; of others, reading a field may have effects."""
    return type(value).__module__.startswith("moeprune.") and dataclasses.is_dataclass(value)


def _references(view: torch.Tensor) -> int:
    """To what a tensor is a view of; 0: to nothing."""
    base = view._base
    return 0 if base is None else sys.getrefcount(base)


@functools.cache
def _alone() -> int:
    """References to what only a view keeps."""
    with torch.inference_mode(mode=False):  # in it, views know nothing of their bases
        return _references(torch.ones(2)[1:])


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "meta" and tensor.layout is torch.strided


def _locals(frame: Any) -> Iterator[tuple[Any, ...]]:
    while frame is not None:
        values = frame.f_locals
        yield tuple(values.values())
        if isinstance(values, dict):
            values.clear()  # a copy, before Python 3.13: it would keep what the frame lets go
        frame = frame.f_back


def _tensors(values: list[Any], seen: set[int], kept: list[Kept]) -> Iterator[torch.Tensor]:
    while values:
        value = values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if type(value) is torch.Tensor:
                yield value
                values.append(value.grad if value.is_leaf else None)
                if _references(value) == _alone():
                    values.append(value._base)  # nothing but the view keeps it
        elif isinstance(value, Kept):
            kept.append(value)
        elif isinstance(value, Mapping):
            values.extend(value.values())
        elif isinstance(value, list | tuple | set):
            values.extend(value)
        elif _is_ours(value):
            values.extend(getattr(value, part.name, None) for part in dataclasses.fields(value))
        elif type(value).__module__.startswith("transformers.") and not isinstance(
            value, nn.Module | type
        ):
            values.extend(getattr(value, "__dict__", {}).values())  # caches

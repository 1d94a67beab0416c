"""Tensors in what modules are called with and give back: tuples, lists and mappings of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor


def tensors(nest: Any) -> Iterator[Tensor]:
    """Every tensor, in order; one that stands in two places comes twice."""
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, Mapping):
        for value in nest.values():
            yield from tensors(value)
    elif isinstance(nest, tuple | list):
        for value in nest:
            yield from tensors(value)


def mapped(nest: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest, in containers of its own, with other tensors."""
    if isinstance(nest, Tensor):
        return change(nest)
    if isinstance(nest, MutableMapping):
        found = copy.copy(nest)
        for key, value in nest.items():
            found[key] = mapped(value, change)
        return found
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(mapped(value, change) for value in nest))
    if isinstance(nest, tuple | list):
        return type(nest)(mapped(value, change) for value in nest)
    return nest


class Containers:
    """The mappings and lists of a nest, and what is written to them after this was made.

    Layers that share keys and values hand them on so: in a mapping that all of them are given.
    """

    def __init__(self, nest: Any) -> None:
        self._before = [(one, dict(_items(one))) for one in _containers(nest)]

    def written(self) -> list[Any]:
        """What stands in places that are new or have another content, in order."""
        return [container[key] for container, key in self._places()]

    def write(self, values: list[Any]) -> None:
        """Put other values in the places of :meth:`written`."""
        for (container, key), value in zip(self._places(), values, strict=True):
            container[key] = value

    def _places(self) -> list[tuple[Any, Any]]:
        return [
            (container, key)
            for container, before in self._before
            for key, value in _items(container)
            if key not in before or before[key] is not value
        ]


def _items(container: Any) -> list[tuple[Any, Any]]:
    pairs = container.items() if isinstance(container, Mapping) else enumerate(container)
    return list(pairs)


def _containers(nest: Any) -> Iterator[Any]:
    if isinstance(nest, MutableMapping | list):
        yield nest
    if isinstance(nest, Mapping):
        for value in nest.values():
            yield from _containers(value)
    elif isinstance(nest, tuple | list):
        for value in nest:
            yield from _containers(value)

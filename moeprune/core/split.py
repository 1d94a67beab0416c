"""How a tensor that holds all experts of a layer falls apart into linear maps of one expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One stored tensor of all experts, cut as loaders name the maps of a single expert.

    The slab of an expert is what the tensor holds of it, without the axis of the experts: (out, in)
    of all maps together, or (in, out) where ``transposed``.

    Attributes:
        module: the experts module as the names of single experts' tensors spell it; the tensor of
            expert e is ``<module>.<e>.<map>.weight``.
        maps: names of the maps in it, in the order in which they lie, e.g. ``gate_proj``,
            ``up_proj``; all of one size.
        transposed: whether it is stored (in, out).
        interleaved: whether outputs of the maps take turns; if not, those of one follow the other.
    """

    module: str
    maps: tuple[str, ...]
    transposed: bool = False
    interleaved: bool = False

    def target(self, expert: int, name: str) -> str:
        """The weight of map ``name`` of one expert, as loaders name it."""
        return f"{self.module}.{expert}.{name}.weight"

    def shape(self, slab: tuple[int, int]) -> tuple[int, int]:
        """(out, in) of each map in a slab of this shape."""
        outputs, inputs = slab[::-1] if self.transposed else slab
        return outputs // len(self.maps), inputs

    def cut(self, slab: Any) -> list[Any]:
        """Views of a slab (numpy or torch), one a map, each (out, in)."""
        weight = slab.T if self.transposed else slab
        count = len(self.maps)
        if self.interleaved:
            return [weight[first::count] for first in range(count)]
        size = weight.shape[0] // count
        return [weight[first * size : (first + 1) * size] for first in range(count)]

"""How a tensor that holds all experts of a layer falls apart into linear maps of one expert."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One stored tensor of all experts, cut as loaders name the maps of a single expert.

    Attributes:
        maps: names of the maps in it, in the order in which they lie, e.g. ``gate_proj``,
            ``up_proj``; the tensor of expert e is ``<experts module>.<e>.<map>.<leaf>``.
        leaf: ``"weight"`` or ``"bias"``.
        transposed: whether the weight is stored (in, out).
        interleaved: whether outputs of the maps take turns; if not, those of one follow the other.
    """

    maps: tuple[str, ...]
    leaf: str = "weight"
    transposed: bool = False
    interleaved: bool = False

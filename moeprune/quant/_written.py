"""What a scheme of ``quant/schemes`` is told of an export, to state it in config.json."""

from __future__ import annotations

from dataclasses import dataclass

from moeprune.core.quantisation import SchemeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Which linear maps of an export are quantised, and how.

    Attributes:
        quantised: names of the modules whose weight is quantised, as the export's tensors spell
            them without the leaf: ``model.layers.0.mlp.experts.0.gate_proj``.
        plain: names of all other modules that hold a matrix, in the same spelling.
        options: of the quantised ones.
    """

    quantised: tuple[str, ...]
    plain: tuple[str, ...]
    options: SchemeOptions

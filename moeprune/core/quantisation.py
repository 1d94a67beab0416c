"""How the experts of an export are to be stored: what was asked for, and what came of it.

Plain data, shared by the stages, plans and model cards; the arithmetic lies in ``quant/schemes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moeprune.errors import UsageError

SCHEMES = ("nf4", "int8", "int4", "fp8")
MIXED = "mixed"
PARTS = ("attention", "shared")
_LARGEST_GROUP = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantOptions:
    """What ``export --quantize`` is asked for.

    Attributes:
        scheme: one of ``SCHEMES``, or ``MIXED``.
        also: parts beside the routed experts, of ``PARTS``.
        group_size: consecutive inputs that share a scale (of fp8, side of a block); None: the
            scheme's default.
        double_quant: of nf4, whether scales are quantised too.
        requantize: whether a quantised source is turned into numbers first.
    """

    scheme: str
    also: tuple[str, ...] = ()
    group_size: int | None = None
    double_quant: bool = False
    requantize: bool = False

    def __post_init__(self) -> None:
        if self.scheme not in (*SCHEMES, MIXED):
            raise UsageError(
                f"--quantize {self.scheme!r} is none of {', '.join((*SCHEMES, MIXED))}."
            )
        unknown = [part for part in self.also if part not in PARTS]
        if unknown:
            raise UsageError(f"--also {unknown[0]!r} is none of {', '.join(PARTS)}.")
        size = self.group_size
        if size is not None and not (type(size) is int and 1 <= size <= _LARGEST_GROUP):
            raise UsageError(f"--group-size {size!r} is not a number from 1 up.")
        if self.double_quant and self.scheme != "nf4":
            raise UsageError(
                f"--double-quant is for nf4; {self.scheme} has no scales that it would quantise."
            )

    def to_json(self) -> dict[str, Any]:
        """A JSON object of plain types."""
        return {
            "scheme": self.scheme,
            "also": list(self.also),
            "group_size": self.group_size,
            "double_quant": self.double_quant,
            "requantize": self.requantize,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeOptions:
    """What a scheme is told of one weight that it writes.

    Attributes:
        group_size: consecutive inputs that share a scale (of fp8, side of a block).
        double_quant: of nf4, whether scales are quantised too.
        dtype: the plain type in which the model computes, as safetensors spells it: that of the
            source's weights. Scales have it, and loaders turn numbers into it.
    """

    group_size: int
    double_quant: bool = False
    dtype: str = "BF16"


@dataclass(frozen=True, slots=True)
class WeightError:
    """How far one stored weight is from the source's.

    Attributes:
        error_sq: sum of the squared differences.
        norm_sq: sum of the squares of the source.
        count: numbers of the weight.
    """

    error_sq: float
    norm_sq: float
    count: int

    @property
    def relative(self) -> float:
        """Frobenius norm of the difference over that of the source; 0 of an exact copy."""
        if not self.error_sq:
            return 0.0
        return float((self.error_sq / self.norm_sq) ** 0.5) if self.norm_sq else float("inf")

    def __add__(self, other: WeightError) -> WeightError:
        return WeightError(
            self.error_sq + other.error_sq, self.norm_sq + other.norm_sq, self.count + other.count
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSchemes:
    """The scheme of every MoE layer, as ``mixed`` chose them and a plan stores them.

    Attributes:
        schemes: (L,) one of ``SCHEMES``, or ``"none"``: as the source has it.
        group_sizes: scheme -> its group size.
        details: what is known of the choice (budget, bytes, objective, bound): plain JSON values.
    """

    schemes: tuple[str, ...]
    group_sizes: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

"""How the experts of an export are to be stored: what was asked for, and what came of it.

Plain data, shared by the stages, plans and model cards; the arithmetic lies in ``quant/schemes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moeprune.errors import PlanError, UsageError

SCHEMES = ("nf4", "int8", "int4", "fp8")
MIXED = "mixed"
PLAIN = "none"
# What one config.json can state side by side: fp8 and nf4 are quantisers of their own.
MIXABLE = (PLAIN, "int8", "int4")
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
        schemes: (L,) one of ``MIXABLE``; ``PLAIN``: as the source has it.
        group_sizes: scheme -> its group size, of all that are in ``schemes`` but ``PLAIN``.
        details: what is known of the choice (budget, bytes, objective, bound): plain JSON values.
    """

    schemes: tuple[str, ...]
    group_sizes: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for scheme in self.schemes:
            if scheme not in MIXABLE:
                raise PlanError(
                    f"scheme {scheme!r} of a layer is none of {', '.join(MIXABLE)}, which one "
                    "checkpoint can mix. Use one of these, or export --quantize for all layers."
                )
        for scheme in self.used:
            size = self.group_sizes.get(scheme)
            if not (type(size) is int and 1 <= size <= _LARGEST_GROUP):
                raise PlanError(
                    f"quantize.group_sizes: {scheme} has {size!r}; it should be a number from 1 up."
                )

    @property
    def used(self) -> tuple[str, ...]:
        """The schemes that some layer has, but for ``PLAIN``; in the order of ``MIXABLE``."""
        return tuple(name for name in MIXABLE if name in self.schemes and name != PLAIN)

    @property
    def budget(self) -> int | None:
        """The most bytes that the exported folder may have, or None: any."""
        return self.details.get("budget")

    def without_figures(self) -> LayerSchemes:
        """The same schemes and budget, without what was computed of them."""
        budget = {} if self.budget is None else {"budget": self.budget}
        return replace(self, details=budget)

    def to_json(self) -> dict[str, Any]:
        """The entry ``quantize`` of ``plan.json``; schemes stand in the lines of the layers."""
        return {"scheme": MIXED, "group_sizes": dict(self.group_sizes), **self.details}

    @classmethod
    def from_json(
        cls, body: Any, schemes: tuple[str | None, ...], *, path: object
    ) -> LayerSchemes | None:
        """Rebuild from :meth:`to_json`'s object and the layers' schemes; None: there are none.

        Raises:
            PlanError: one without the other, or a value that is none.
        """
        if body is None and not any(scheme is not None for scheme in schemes):
            return None
        if not isinstance(body, Mapping) or body.get("scheme") != MIXED:
            raise PlanError(
                f"{path}: layers state a scheme, and quantize is {body!r}; it should be an object "
                f'with "scheme": "{MIXED}" and "group_sizes".'
            )
        named = tuple(scheme for scheme in schemes if isinstance(scheme, str))
        if len(named) != len(schemes):
            raise PlanError(
                f"{path}: quantize needs a scheme in every layer ({', '.join(MIXABLE)}); "
                f"{len(schemes) - len(named)} of {len(schemes)} have none."
            )
        sizes = body.get("group_sizes", {})
        if not isinstance(sizes, Mapping):
            raise PlanError(f"{path}: quantize.group_sizes is {sizes!r}; it should be an object.")
        budget = body.get("budget")
        if budget is not None and not (type(budget) is int and budget > 0):
            raise PlanError(f"{path}: quantize.budget is {budget!r}; it should be bytes from 1 up.")
        details = {key: body[key] for key in body if key not in ("scheme", "group_sizes")}
        try:
            return cls(schemes=named, group_sizes=sizes, details=details)
        except PlanError as problem:
            raise PlanError(f"{path}: {problem}") from None

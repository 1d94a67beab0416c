"""What moeprune.json says of how the weights of an export are stored, read back.

L MoE layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.core.quantisation import MIXED, PLAIN, SCHEMES, QuantOptions
from moeprune.core.rows import Row
from moeprune.errors import CheckpointError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedRecord:
    """How an export is quantised.

    Attributes:
        options: what was asked for.
        group_sizes: scheme -> numbers that share a scale.
        schemes: (L,) one of ``SCHEMES`` or ``PLAIN``; (): all layers have that of the options.
        parameters: part -> (parameters of its matrices, those of them that are quantised).
        errors: (L, experts that stay) relative error of each expert's weights.
        relative: of all of them.
        worst: layer, expert set, expert (id in the source) and error of the worst, as listed.
        nbytes: of all tensors.
    """

    options: QuantOptions
    group_sizes: Mapping[str, int]
    schemes: tuple[str, ...]
    parameters: Mapping[str, tuple[int, int]]
    errors: tuple[tuple[float, ...], ...]
    relative: float
    worst: tuple[tuple[Row, int, float], ...]
    nbytes: int

    @property
    def also(self) -> tuple[str, ...]:
        """Parts beside the routed experts that are quantised."""
        return self.options.also

    @property
    def double_quant(self) -> bool:
        """Whether the scales of nf4 are quantised."""
        return self.options.double_quant

    @property
    def requantised(self) -> bool:
        """Whether the source was, and its numbers were read from that."""
        return self.options.requantize

    def scheme_of(self, row: int) -> str:
        """That of the experts of a row."""
        return self.schemes[row] if self.schemes else self.options.scheme

    def group_size_of(self, scheme: str) -> int:
        """Numbers that share a scale (of fp8, side of a block)."""
        return self.group_sizes.get(scheme, 0)

    @classmethod
    def from_json(cls, body: Any, *, path: Path) -> QuantisedRecord:
        """Rebuild from what moeprune.json says under ``quantisation``.

        Raises:
            CheckpointError: it is malformed.
        """
        try:
            return cls._read(body)
        except (KeyError, TypeError, ValueError, AttributeError, UsageError) as problem:
            raise CheckpointError(
                f"{path}: quantisation is malformed ({type(problem).__name__}: {problem}). Export "
                "again."
            ) from None

    @classmethod
    def _read(cls, body: Any) -> QuantisedRecord:
        told = dict(body["options"])
        options = QuantOptions(**{**told, "also": tuple(told["also"])})
        schemes = tuple(body.get("schemes", ()))
        if not set(schemes) <= {*SCHEMES, PLAIN} or (options.scheme == MIXED) != bool(schemes):
            raise ValueError(f"schemes {list(schemes)!r}")
        if body["scheme"] != options.scheme:
            raise ValueError(f"scheme {body['scheme']!r}")
        sizes = body["group_sizes"] if schemes else {options.scheme: body["group_size"]}
        if not all(type(size) is int and size > 0 for size in sizes.values()):
            raise ValueError(f"group_size {sizes!r}")
        error = body["error"]
        return cls(
            options=options,
            group_sizes=sizes,
            schemes=schemes,
            parameters={
                part: (int(found["parameters"]), int(found["quantised"]))
                for part, found in body["parts"].items()
            },
            errors=tuple(tuple(map(float, row)) for row in error["layers"]),
            relative=float(error["relative"]),
            worst=tuple(
                (
                    (int(at["layer"]), str(at.get("set", ""))),
                    int(at["expert"]),
                    float(at["relative"]),
                )
                for at in error["worst"]
            ),
            nbytes=sum(int(found["bytes_after"]) for found in body["parts"].values()),
        )

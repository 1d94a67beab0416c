"""What verify expects of quantised tensors, derived from the source apart from what wrote them.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from moeprune.checkpoint.audit_padding import Reads
from moeprune.checkpoint.index import CheckpointIndex, TensorEntry
from moeprune.core.layout import TensorInfo
from moeprune.core.quantisation import PLAIN
from moeprune.core.split import Split
from moeprune.quant import Judged, Raw, judged, loaded_values, stored_names, to_dtype, weight_values


@dataclass(frozen=True, slots=True)
class Slab:
    """The part of a stored tensor that one expert has, or a whole tensor.

    Attributes:
        entry: where the tensor lies.
        start, end: bytes in its file.
        info: type and shape of the part.
    """

    entry: TensorEntry
    start: int
    end: int
    info: TensorInfo

    @classmethod
    def of(cls, entry: TensorEntry, *, expert: int | None = None, block: int = 1) -> Slab:
        """Of a whole tensor, or of the ``expert`` among those on its first axis."""
        if expert is None:
            return cls(entry, entry.start, entry.end, entry.info)
        share = entry.info.nbytes // (entry.info.shape[0] // block)
        shape = entry.info.shape[1:] if block == 1 else (block, *entry.info.shape[1:])
        start = entry.start + expert * share
        return cls(entry, start, start + share, TensorInfo(entry.info.dtype, shape, share))

    def read(self, reads: Reads) -> Raw:
        """Its bytes."""
        return Raw(self.info, reads.read(self.entry.file, self.start, self.end - self.start))


@dataclass(slots=True)
class Ledger:
    """What was found of all quantised weights.

    Attributes:
        errors: (row, place among the kept experts) -> (sum of squared errors, of squares).
        parts: part of the model -> parameters that are quantised.
    """

    errors: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)

    def add(self, place: tuple[int, int] | None, part: str, found: Judged, count: int) -> None:
        """Count one weight; ``place`` is None of a weight that is no routed expert's."""
        self.parts[part] = self.parts.get(part, 0) + count
        if place is not None:
            error, norm = self.errors.get(place, (0.0, 0.0))
            self.errors[place] = error + found.error_sq, norm + found.norm_sq


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """One stored weight of the source, and the linear maps that were made of it.

    Attributes:
        source: its name, or that of its stack, for messages.
        parts: suffix -> where the source has it; of a plain weight ``weight`` alone.
        settings: the source's quantisation settings.
        split: how it falls apart; None: it is one map.
        modules: names of the maps in the export.
        scheme: that they are written in, or ``PLAIN``: in ``dtype``.
        group_size: numbers that share a scale.
        double_quant: whether the scales of nf4 are quantised.
        dtype: the plain type of the source, or what a quantised one is turned into.
        requantised: whether the source is quantised.
        place: row, and place among the kept experts; None: of no routed expert.
        part: of the model.
        factor: what the source's numbers are multiplied by first, rounded to their type.
        empty: it pads a layer: the map is zero.
        number: of an expert that is cut out of a stack, its place among the kept ones.
        export: the export.
        ledger: what is found is added to it.
    """

    source: str
    parts: Mapping[str, Slab]
    settings: Mapping[str, Any]
    split: Split | None
    modules: tuple[str, ...]
    scheme: str
    group_size: int
    double_quant: bool
    dtype: str
    requantised: bool
    place: tuple[int, int] | None
    part: str
    export: CheckpointIndex
    ledger: Ledger
    factor: float = 1.0
    empty: bool = False
    number: int | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of all tensors that it becomes."""
        return tuple(f"{module}.{name}" for module in self.modules for name in self._names)

    @property
    def _names(self) -> Sequence[str]:
        if self.scheme == PLAIN:
            return ("weight",)
        return stored_names(self.scheme, double_quant=self.double_quant)

    def problems(self, mine: Reads, theirs: Reads) -> Iterator[str]:
        """What is wrong with them, one line each."""
        raws = {name: slab.read(mine) for name, slab in self.parts.items()}
        if self.scheme == PLAIN and not self.requantised:
            yield from self._plain(raws["weight"], theirs)
            return
        try:
            weight = weight_values(raws, self.settings)
        except (RuntimeError, ValueError, LookupError, TypeError):  # a damaged file
            weight = None
        if weight is None:
            yield f"{self.source} cannot be read, so what was made of it cannot be checked"
            return
        if self.requantised:
            weight = to_dtype(weight, self.dtype)
        if self.factor != 1.0:
            weight = to_dtype((weight.astype(np.float64) * self.factor), self.dtype)
        if self.empty:
            weight = np.zeros_like(weight)
        for module, map_weight in zip(
            self.modules, self.split.cut(weight) if self.split else [weight], strict=True
        ):
            stored, lacking = self._stored(module, theirs)
            if lacking:
                yield f"{module}.{lacking} is missing (it is made of {self.source})"
            elif self.scheme == PLAIN:
                made = weight_values(stored, {})
                step = 2.0**-7 if self.dtype == "BF16" else 2.0**-10
                if made is None or not np.allclose(made, map_weight, rtol=step, atol=0):
                    yield f"{module}: is not the plain weight of {self.source}"
            else:
                found = judged(
                    self.scheme,
                    stored,
                    np.ascontiguousarray(map_weight),
                    dtype=self.dtype,
                    group_size=self.group_size,
                )
                if found.problem:
                    yield f"{module}: {found.problem} (it is made of {self.source})"
                self.ledger.add(self.place, self.part, found, map_weight.size)

    def decoded(self, theirs: Reads, *, natively: bool) -> list[npt.NDArray[np.float32]]:
        """The numbers of its maps in the export, as loaders read them.

        Args:
            theirs: the export, which has passed :meth:`problems`.
            natively: whether transformers reads them by itself.
        """
        found = []
        for module in self.modules:
            stored, _ = self._stored(module, theirs)
            values = (
                weight_values(stored, {})
                if self.scheme == PLAIN
                else loaded_values(self.scheme, stored, natively=natively)
            )
            assert values is not None
            found.append(values)
        return found

    def _stored(self, module: str, theirs: Reads) -> tuple[dict[str, Raw], str]:
        """The tensors of a map in the export, and the name of one that it lacks."""
        found = {}
        for name in self._names:
            entry = self.export.entries.get(f"{module}.{name}")
            if entry is None:
                return {}, name
            found[name] = Slab.of(entry).read(theirs)
        return found, ""

    def _plain(self, raw: Raw, theirs: Reads) -> Iterator[str]:
        """Single experts' maps as the stack has them, to the bit."""
        size = raw.info.nbytes // max(1, int(np.prod(raw.info.shape)))
        bits = np.frombuffer(raw.data, f"<u{size}").reshape(raw.info.shape)
        cut = self.split.cut(bits) if self.split else [bits]
        for target, due in zip(self.targets, cut, strict=True):
            entry = self.export.entries.get(target)
            if entry is None:
                yield f"{target} is missing (it is cut from {self.source})"
            elif (entry.info.dtype, entry.info.shape) != (raw.info.dtype, due.shape):
                yield f"{target} is {entry.info.dtype} {list(entry.info.shape)}, not {raw.info}"
            elif Slab.of(entry).read(theirs).data != np.ascontiguousarray(due).tobytes():
                yield f"{target}: bytes differ from those in {self.source}"

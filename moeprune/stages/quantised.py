"""What quantising an export comes to: its edits, its settings, sizes, and the errors of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moeprune.checkpoint.edits import TensorEdit
from moeprune.core.layout import TensorInfo
from moeprune.core.quantisation import LayerSchemes, QuantOptions, WeightError
from moeprune.core.rows import Row
from moeprune.stages.weights import LinearMap

WORST = 10
_LONGEST = 1.23456e-100  # of six digits: no other is written with more letters
_NOTHING = WeightError(0.0, 0.0, 0)


@dataclass(slots=True)
class Ledger:
    """How far each weight is from the source's, filled while they are written.

    Attributes:
        maps: the weights that are quantised.
        keep: (L,) ids that stay.
        rows: (L,) layer and expert set.
        found: module -> its error.
    """

    maps: Sequence[LinearMap]
    keep: Sequence[Sequence[int]]
    rows: Sequence[Row]
    found: dict[str, WeightError] = field(default_factory=dict)

    def by_expert(self) -> dict[tuple[int, int], WeightError]:
        """(row, id of the expert in the source) -> error of all its maps together.

        An expert that the model has once for text and once for images is one. Idle experts, which
        stay behind the others and never run, are none.
        """
        sums: dict[tuple[int, int], WeightError] = {}
        stay = [frozenset(ids) for ids in self.keep]
        for at in self.maps:
            if at.row is None or at.expert not in stay[at.row] or at.module not in self.found:
                continue
            place = at.row, at.expert
            sums[place] = sums.get(place, _NOTHING) + self.found[at.module]
        return sums

    def to_json(self) -> dict[str, Any]:
        """What moeprune.json says under ``quantisation.error``."""
        by_expert = self.by_expert()
        total = sum(by_expert.values(), start=_NOTHING)
        worst = sorted(by_expert, key=lambda at: (-by_expert[at].relative, at))[:WORST]
        return {
            "relative": _rounded(total.relative),
            "layers": [
                [
                    _rounded(by_expert[row, expert].relative) if (row, expert) in by_expert else 0.0
                    for expert in ids
                ]
                for row, ids in enumerate(self.keep)
            ],
            "worst": [self._named(at, _rounded(by_expert[at].relative)) for at in worst],
        }

    def longest(self) -> dict[str, Any]:
        """The same before anything is known, with numbers as long as any that it can hold."""
        ids = [(row, expert) for row, ids in enumerate(self.keep) for expert in ids]
        by_length = sorted(ids, key=lambda at: -len(str(self._named(at, _LONGEST))))
        return {
            "relative": _LONGEST,
            "layers": [[_LONGEST for _ in ids] for ids in self.keep],
            "worst": [self._named(at, _LONGEST) for at in by_length[:WORST]],
        }

    def _named(self, at: tuple[int, int], relative: float) -> dict[str, Any]:
        row, expert = at
        layer, expert_set = self.rows[row]
        of = {"layer": layer, **({"set": expert_set} if expert_set else {}), "expert": expert}
        return of | {"relative": relative}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSize:
    """One part of an export.

    Attributes:
        bytes_before, bytes_after: of all its tensors, without and with quantisation.
        parameters: of its matrices.
        quantised: of those, the parameters that are quantised.
    """

    bytes_before: int
    bytes_after: int
    parameters: int
    quantised: int

    def to_json(self) -> dict[str, int]:
        """Plain numbers."""
        return {
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "parameters": self.parameters,
            "quantised": self.quantised,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """The quantised export.

    Attributes:
        edits: all of them, the quantised weights' in place of the plain ones'.
        settings: ``quantization_config`` of config.json.
        options: what was asked for.
        group_sizes: scheme -> its group size; one, but for ``mixed``.
        layers: with ``mixed``: the scheme of every layer.
        parts: part -> its size.
        stored: tensor of the source -> what it would be in the export if every expert stayed, with
            the source's shape and the export's bytes; of tensors of which something is quantised.
        padding: bytes that quantising takes from padded experts.
        errors: filled while the weights are written.
        code: parts that the folder's model code must hold, see ``checkpoint.composing.PARTS``.
        warnings: what whoever loads it must know, one line each.
    """

    edits: tuple[TensorEdit, ...]
    settings: Mapping[str, Any]
    options: QuantOptions
    group_sizes: Mapping[str, int]
    parts: Mapping[str, PartSize]
    stored: Mapping[str, TensorInfo]
    padding: int
    errors: Ledger
    layers: LayerSchemes | None = None
    code: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def size(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        """What moeprune.json says under ``size``.

        Args:
            plain: the same of the export without quantisation.
        """
        saved = sum(part.bytes_before - part.bytes_after for part in self.parts.values())
        size = {key: value for key, value in plain.items() if key != "bytes_planned"}
        size |= {"bytes_after": plain["bytes_after"] - saved}
        if "bytes_padding" in plain:
            size["bytes_padding"] = plain["bytes_padding"] - self.padding
        return size

    def to_json(self, *, reserve: bool = False) -> dict[str, Any]:
        """What moeprune.json says under ``quantisation``; with errors once they are known.

        Args:
            reserve: before they are, in their place what is as long as they can become.
        """
        body: dict[str, Any] = {
            "scheme": self.options.scheme,
            "options": self.options.to_json(),
            **self._group_sizes(),
            "parts": {part: size.to_json() for part, size in self.parts.items()},
            **({"code": list(self.code)} if self.code else {}),
        }
        if self.errors.found:
            body["error"] = self.errors.to_json()
        elif reserve:
            body["error"] = self.errors.longest()
        return body

    def _group_sizes(self) -> dict[str, Any]:
        if self.layers is not None:
            return {"group_sizes": dict(self.group_sizes), "schemes": list(self.layers.schemes)}
        (size,) = self.group_sizes.values()
        return {"group_size": size}


def part_sizes(
    edits: Sequence[TensorEdit],
    parts: Sequence[str],
    maps: Sequence[LinearMap],
    written: Mapping[str, int],
    *,
    before: Mapping[str, int],
) -> dict[str, PartSize]:
    """Part -> its size, of the parts that there are.

    Args:
        edits: before quantising, of plain weights.
        parts: the part of each edit.
        maps: all matrices.
        written: module -> bytes of what is written for it, of those that are quantised.
        before: part -> bytes of all its tensors, as the source stores them.
    """
    after: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    quantised: Counter[str] = Counter()
    for part, edit in zip(parts, edits, strict=True):
        after[part] += edit.info.nbytes
    for at in maps:
        parameters[at.part] += at.count
        if at.module in written:
            quantised[at.part] += at.count
            after[at.part] += written[at.module] - at.nbytes
    return {
        part: PartSize(
            bytes_before=before.get(part, 0),
            bytes_after=after[part],
            parameters=parameters[part],
            quantised=quantised[part],
        )
        for part in sorted({*before, *after})
    }


def _rounded(value: float) -> float:
    """Six digits: the last ones of a sum depend on how many threads added it up."""
    return float(f"{value:.6g}")

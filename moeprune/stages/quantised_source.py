"""Which tensors of a source became quantised ones of an export, told from the layout and record.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moeprune.checkpoint.audit_names import numbered, target_name
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.layout import ExpertTensor, MoeLayout
from moeprune.core.names import names_table
from moeprune.core.quantisation import PLAIN
from moeprune.core.split import Split
from moeprune.quant import stored_format, stored_maps
from moeprune.stages.audit_quantised import Ledger, QuantisedWeight, Slab
from moeprune.stages.number_type import plain_type
from moeprune.stages.parts import EXPERT, OTHER, part_of
from moeprune.stages.quantised_record import QuantisedRecord

_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """One weight of the source as it is stored.

    Attributes:
        name: of the tensor that it is known by.
        stem: the name of the linear map, or of the stack of all experts.
        parts: suffix -> stored tensor.
        quantised: whether its numbers are.
    """

    name: str
    stem: str
    parts: Mapping[str, str]
    quantised: bool

    @property
    def plain(self) -> str:
        """Its name in a checkpoint of plain numbers."""
        if not self.quantised:
            return self.name
        stack = "blocks" in self.parts or self.stem in self.parts.values()
        return self.stem if stack else self.stem + _WEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedSource:
    """What verify expects of a quantised export.

    Attributes:
        source: the source; tensors that leave are not in it.
        export: the export.
        layout: of the source, next-token layers included.
        keep: (L,) ids that stay.
        width: experts of every layer in the export, or 0: as many as stay.
        record: what the export says of itself.
        factors: tensor of the source -> what its values are multiplied by.
        whole: whether next-token layers keep all experts.
    """

    source: CheckpointIndex
    export: CheckpointIndex
    layout: MoeLayout
    keep: Sequence[Sequence[int]]
    width: int
    record: QuantisedRecord
    factors: Mapping[str, float]
    whole: bool

    def computed(self, ledger: Ledger) -> dict[str, list[QuantisedWeight]]:
        """Tensor of the source -> what was made of it; what is not in it is copied.

        Args:
            ledger: what is found is added to it, once the tensors are looked at.
        """
        found: dict[str, list[QuantisedWeight]] = {}
        for stored, made in self.weights(ledger):
            first, *others = stored.parts.values()
            if made or stored.quantised:
                found[first] = made
                found |= {name: [] for name in others}
        return found

    def weights(self, ledger: Ledger) -> Iterator[tuple[StoredWeight, list[QuantisedWeight]]]:
        """Every weight of the source, and what was made of it; nothing: it is copied, or leaves.

        Args:
            ledger: what is found is added to it, once the tensors are looked at.
        """
        for stored in self._weights():
            rule = self.layout.tensors.get(stored.name)
            yield stored, list(self._made(stored, rule, self.dtype, ledger))

    @property
    def dtype(self) -> str:
        """The type of the source's weights once they are plain numbers."""
        return plain_type(self.source)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The source's quantisation settings."""
        return _settings(self.source)

    def slab(self, name: str, expert: int | None) -> Slab:
        """What one expert has of a tensor; what no expert has of its own, all have."""
        rule = self.layout.tensors.get(name)
        if expert is None or rule is None or rule.axis != 0:
            return Slab.of(self.source.entries[name])
        return Slab.of(self.source.entries[name], expert=expert, block=rule.block)

    def _weights(self) -> Iterator[StoredWeight]:
        stored = stored_format(self.source.config)
        tensors = self.source.tensors
        within: set[str] = set()
        for stem, parts in stored_maps(stored, tensors).items():
            within |= set(parts.values())
            name = next(iter(parts.values()))
            yield StoredWeight(name=name, stem=stem, parts=parts, quantised=True)
        for name, info in tensors.items():
            matrix = name.endswith(_WEIGHT) and len(info.shape) == 2
            if name not in within and (matrix or name in self.layout.splits):
                stem = name.removesuffix(_WEIGHT)
                yield StoredWeight(name=name, stem=stem, parts={"weight": name}, quantised=False)

    def _made(
        self, stored: StoredWeight, rule: ExpertTensor | None, dtype: str, ledger: Ledger
    ) -> Iterator[QuantisedWeight]:
        if rule is not None and rule.role == "table":
            return
        part = EXPERT if rule is not None and rule.role == "expert" else OTHER
        if rule is None:
            part = part_of(stored.name)
        scheme = PLAIN
        if part == EXPERT and rule is not None:
            scheme = self.record.scheme_of(rule.row)
        elif part in self.record.also and not names_table(stored.name):
            scheme = self.record.options.scheme
        split = self.split_of(stored)
        if scheme == PLAIN and not stored.quantised and (split is None or self._is_whole(stored)):
            return
        info = self.source.entries[stored.name].info
        common: dict[str, Any] = {
            "source": stored.name,
            "settings": self.settings if stored.quantised else {},
            "split": split,
            "scheme": scheme,
            "group_size": self.record.group_size_of(scheme),
            "double_quant": self.record.double_quant,
            "dtype": dtype if stored.quantised else info.dtype,
            "requantised": stored.quantised,
            "part": part,
            "export": self.export,
            "ledger": ledger,
            "factor": self.factors.get(stored.name, 1.0),
        }
        if rule is not None and rule.axis is not None:
            yield from self._of_stack(stored, rule, split, common)
            return
        ids = self._ids(rule) if rule is not None else ()
        experts = self.layout.num_experts[rule.row] if rule is not None else 0
        target = target_name(stored.stem + _WEIGHT, rule, ids, experts)
        parts = {suffix: Slab.of(self.source.entries[n]) for suffix, n in stored.parts.items()}
        if target is None:
            return
        place = None
        if rule is not None and rule.expert is not None and not rule.follows:
            numbers = {expert: number for number, expert in enumerate(ids)}
            if rule.expert in numbers:  # an idle one never runs
                place = rule.row, numbers[rule.expert]
        modules = (target.removesuffix(_WEIGHT),)
        yield QuantisedWeight(parts=parts, modules=modules, place=place, **common)
        if rule is not None and rule.expert is not None and ids and rule.expert == ids[-1]:
            for number in range(len(ids), self.width):
                empty = numbered(stored.stem + _WEIGHT, rule.expert, number)
                modules = (empty.removesuffix(_WEIGHT),)
                yield QuantisedWeight(
                    parts=parts, modules=modules, place=None, empty=True, **common
                )

    def _of_stack(
        self, stored: StoredWeight, rule: ExpertTensor, split: Split | None, common: dict[str, Any]
    ) -> Iterator[QuantisedWeight]:
        """Single experts' maps of a tensor that holds all of them."""
        ids = self._ids(rule)
        for number in range(max(len(ids), self.width)):
            empty = number >= len(ids)
            expert = ids[0] if empty else ids[number]
            parts = {suffix: self.slab(name, expert) for suffix, name in stored.parts.items()}
            maps = split.maps if split is not None else ()
            modules = tuple(f"{split.module}.{number}.{name}" for name in maps) if split else ()
            yield QuantisedWeight(
                parts=parts,
                modules=modules,
                place=None if empty or rule.follows else (rule.row, number),
                empty=empty,
                number=None if empty else number,
                **common,
            )

    def _ids(self, rule: ExpertTensor) -> Sequence[int]:
        """Experts that stay of those of one tensor's layer."""
        if rule.follows and self.whole:
            return range(self.layout.num_experts[rule.row])
        return self.keep[rule.row]

    def split_of(self, stored: StoredWeight) -> Split | None:
        """How a stack falls apart into the maps of single experts; None: it is none."""
        return next(
            (self.layout.splits[n] for n in stored.parts.values() if n in self.layout.splits), None
        )

    def _is_whole(self, stored: StoredWeight) -> bool:
        """Whether the export has a stack as the source has it."""
        return stored.name in self.export.entries


def _settings(source: CheckpointIndex) -> Mapping[str, Any]:
    stored = stored_format(source.config)
    return {} if stored is None else stored.settings

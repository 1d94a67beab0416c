"""verify of a quantised export: its weights, the errors that it states, and what is quantised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.layout import MoeLayout
from moeprune.core.names import names_table
from moeprune.core.quantisation import PLAIN
from moeprune.errors import UnsupportedModelError
from moeprune.quant import stated_problems
from moeprune.stages.audit_quantised import Ledger, QuantisedWeight
from moeprune.stages.exported import RECORD, Exported
from moeprune.stages.forms import PADDED
from moeprune.stages.parts import EXPERT
from moeprune.stages.quantised import WORST
from moeprune.stages.quantised_record import QuantisedRecord
from moeprune.stages.quantised_reference import Reference
from moeprune.stages.quantised_source import QuantisedSource
from moeprune.stages.reading_code import reading_code

_SAME = 1e-4  # of two errors: sums of many small numbers, one of them rounded to six digits


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedAudit:
    """What a quantised export is compared by.

    Attributes:
        record: what it says of itself.
        export: the export.
        layout: of the source.
        keep: (L,) ids that stay.
        expected: what is due of each tensor.
        computed: tensor of the source -> what was made of it.
        ledger: what was found in them, once they were looked at.
    """

    record: QuantisedRecord
    export: CheckpointIndex
    layout: MoeLayout
    keep: Sequence[Sequence[int]]
    expected: QuantisedSource
    computed: Mapping[str, Sequence[QuantisedWeight]]
    ledger: Ledger

    @classmethod
    def of(
        cls,
        made: Exported,
        source: CheckpointIndex,
        export: CheckpointIndex,
        *,
        layout: MoeLayout,
        factors: Mapping[str, float],
    ) -> QuantisedAudit | None:
        """Of an export; None: it is not quantised.

        Args:
            made: how it was exported.
            source: the source; tensors that leave whole are not in it.
            export: the export.
            layout: of the source, next-token layers included.
            factors: tensor of the source -> what its values are multiplied by.

        Raises:
            CheckpointError: its record is malformed.
        """
        if made.quantisation is None:
            return None
        record = QuantisedRecord.from_json(made.quantisation, path=Path(export.path) / RECORD)
        keep, ledger = made.keep(layout), Ledger()
        expected = QuantisedSource(
            source=source,
            export=export,
            layout=layout,
            keep=keep,
            width=max(map(len, keep)) if made.form == PADDED else 0,
            record=record,
            factors=factors,
            whole=made.mtp == "keep",
        )
        computed = expected.computed(ledger)
        return cls(
            record=record,
            export=export,
            layout=layout,
            keep=keep,
            expected=expected,
            computed=computed,
            ledger=ledger,
        )

    def code(self) -> tuple[str, ...]:
        """Parts that the export's own code must hold, so that transformers reads its weights."""
        rows = {
            self.layout.tensors[one.source].row
            for made in self.computed.values()
            for one in made
            if one.scheme != PLAIN and one.part == EXPERT
        }
        settings = self.export.config.get("quantization_config")
        method = settings.get("quant_method") if isinstance(settings, dict) else None
        return reading_code(
            self.expected.source.config,
            self.layout,
            rows,
            method=str(method),
            schemes=self.record.schemes,
        )

    def reference(self) -> Reference:
        """What the export should compute: the source with the export's numbers.

        Raises:
            UnsupportedModelError: the source itself is read by code of an export.
        """
        block = self.expected.source.config.get("moeprune")
        if isinstance(block, dict) and "merged" in block:
            raise UnsupportedModelError(
                f"{self.expected.source.path} is an export that loads by code of its own, with "
                "which its numbers cannot be replaced. Verify without --forward."
            )
        own_reader = bool(self.code()) or len(set(self.record.schemes)) > 1
        return Reference.of(self.expected, natively=not own_reader)

    def problems(self) -> Iterator[str]:
        """What does not hold of the whole, one line each; after all weights were looked at."""
        yield from self._settings_problems()
        yield from self._error_problems()
        for part, (parameters, quantised) in self.record.parameters.items():
            have = self.ledger.parts.get(part, 0)
            if have != quantised:
                yield f"{RECORD} states {quantised:,} quantised parameters in {part}, not {have:,}"
            if part == EXPERT and PLAIN not in self.record.schemes and quantised != parameters:
                yield f"{quantised:,} of {parameters:,} parameters of routed experts are quantised"
        if self.record.nbytes != self.export.total_bytes:
            yield (
                f"{RECORD} states {self.record.nbytes:,} bytes of tensors in all parts, there are "
                f"{self.export.total_bytes:,}"
            )
        for part in set(self.ledger.parts) - set(self.record.parameters):
            yield f"{RECORD} does not state that {part} is quantised"

    def _settings_problems(self) -> Iterator[str]:
        quantised: dict[str, tuple[str, int]] = {}
        for made in self.computed.values():
            for one in made:
                if one.scheme != PLAIN:
                    quantised |= dict.fromkeys(one.modules, (one.scheme, one.group_size))
        plain = [
            name.removesuffix(".weight")
            for name, info in self.export.tensors.items()
            if name.endswith(".weight") and len(info.shape) == 2 and not names_table(name)
        ]
        yield from stated_problems(
            self.export.config.get("quantization_config"),
            quantised,
            [module for module in plain if module not in quantised],
            double_quant=self.record.double_quant,
        )

    def _error_problems(self) -> Iterator[str]:
        stated = self.record.errors
        if [len(row) for row in stated] != [len(ids) for ids in self.keep]:
            yield f"{RECORD} does not state an error for each expert"
            return
        for (row, place), (error, norm) in sorted(self.ledger.errors.items()):
            if not _same(stated[row][place], error, norm):
                yield (
                    f"layer {self.layout.layer_ids[row]} expert {place}: {RECORD} states a "
                    f"relative error of {stated[row][place]:.6g}, it is "
                    f"{_relative(error, norm):.6g}"
                )
        error, norm = (
            math.fsum(pair) for pair in zip((0.0, 0.0), *self.ledger.errors.values(), strict=True)
        )
        if not _same(self.record.relative, error, norm):
            yield (
                f"{RECORD} states a relative error of {self.record.relative:.6g}, it is "
                f"{_relative(error, norm):.6g}"
            )

        if not self._worst_are_listed():
            yield f"{RECORD} does not list the experts with the largest errors as the worst"

    def _worst_are_listed(self) -> bool:
        stated = self.record.errors
        largest = sorted((error for row in stated for error in row), reverse=True)
        listed = [error for _, _, error in self.record.worst]
        if listed != largest[: len(listed)] or any(largest[len(listed) : WORST]):
            return False
        of = {
            (row, expert): error
            for row, ids, errors in zip(self.layout.rows, self.keep, stated, strict=True)
            for expert, error in zip(ids, errors, strict=True)
        }
        return all(of.get((row, expert)) == error for row, expert, error in self.record.worst)


def _relative(error: float, norm: float) -> float:
    if not error:
        return 0.0
    return math.sqrt(error / norm) if norm else math.inf


def _same(stated: float, error: float, norm: float) -> bool:
    have = _relative(error, norm)
    return stated == have or math.isclose(stated, have, rel_tol=_SAME, abs_tol=1e-7)

"""Which text calibration reads, in which order, and when that is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moeprune.core.domain_stats import Array
from moeprune.core.facts import ModelFacts
from moeprune.core.stats import CalibrationStats
from moeprune.core.unseen import reached_counts
from moeprune.stages.calibrated import domain_stats
from moeprune.stages.enough import agreement_of, look
from moeprune.stages.journal import Journal

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus

Sums = Mapping[str, Mapping[str, Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The text of a calibration.

    Attributes:
        facts: of the model.
        corpora: the domains.
        rounds: parts of them, see :func:`moeprune.stages.measuring.measured`.
        stable: overlap of plans from which on no more is read; None: all is read.
        journal: where what was found after each round is kept.
    """

    facts: ModelFacts
    corpora: Sequence[Corpus]
    rounds: Sequence[Sequence[Corpus]]
    stable: float | None
    journal: Journal

    @classmethod
    def of(
        cls,
        facts: ModelFacts,
        corpora: Sequence[Corpus],
        *,
        stable: float | None,
        seed: int,
        journal: Journal,
    ) -> Reading:
        """All of the text at once, or in rounds."""
        from moeprune.observe.rounds import rounds

        parts = [tuple(corpora)] if stable is None else rounds(corpora, seed)
        return cls(facts=facts, corpora=corpora, rounds=parts, stable=stable, journal=journal)

    def look(self, sums: Sums) -> dict[str, Any]:
        """What is noted after the round that was measured last."""
        assert self.stable is not None
        curve = self.journal.curve
        read = self._read(len(curve) + 1)
        stats = CalibrationStats(
            model=self.facts,
            domains=tuple(
                replace(
                    domain_stats(corpus, sums[corpus.name]),
                    read=len(read[corpus.name].documents),
                )
                for corpus in self.corpora
            ),
            provenance={},
        )
        before = agreement_of(curve[-1]) if curve else None
        return look(stats, stable=self.stable, before=before)

    def note(self, sums: Sums) -> str:
        """The sums so far in a few words."""
        found = reached_counts(self.facts, [own["count"].sum(axis=0) for own in sums.values()])
        per = found["tokens_per_expert"]
        words = f"{found['unseen']:,} unseen, {per['median']:,} tokens/expert"
        agree = agreement_of(self.journal.curve[-1]) if self.journal.curve else None
        return words if agree is None else f"agree {agree:.2f}, {words}"

    @property
    def read(self) -> dict[str, Corpus] | None:
        """Domain -> what was measured of it, None where that is all."""
        return None if self.stable is None else self._read(len(self.journal.curve))

    @property
    def provenance(self) -> dict[str, Any]:
        """What the stats say of it."""
        if self.stable is None:
            return {}
        return {"stable": {"asked": self.stable, "curve": self.journal.curve}}

    def _read(self, rounds: int) -> dict[str, Corpus]:
        """The documents of the first rounds."""
        found: dict[str, Corpus] = {}
        for part in (corpus for each in self.rounds[:rounds] for corpus in each):
            so_far = found.get(part.name)
            found[part.name] = (
                part
                if so_far is None
                else replace(
                    part,
                    numbers=(*so_far.numbers, *part.numbers),
                    documents=(*so_far.documents, *part.documents),
                    targets=(*so_far.targets, *part.targets),
                )
            )
        return found

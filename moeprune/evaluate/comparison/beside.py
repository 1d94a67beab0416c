"""Perplexity beside accuracy: does the one say what the other says.

Perplexity is what one can compute without labels, and it picks the wrong operating point (the
papers on halved experts, section 6.3, and on over-dispersed models, table 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moeprune.evaluate.comparison.differences import Difference
from moeprune.evaluate.comparison.variants import VariantComparison
from moeprune.evaluate.paired.perplexity import perplexity_beside
from moeprune.evaluate.paired.ranks import Correlation

LEAST_VARIANTS = 3  # below which a rank correlation says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One text and one task, over the base and all variants that have both.

    Attributes:
        texts: the task whose perplexity it is.
        task: the task whose accuracy it is; None: all questions of all tasks.
        correlation: Spearman's ρ; -1 where the lower perplexity goes with the higher accuracy. None
            for fewer than three variants.
        disagree: variants of which one got better and the other worse.
        surely: those of them whose accuracy is surely different (corrected).
    """

    texts: str
    task: str | None
    correlation: Correlation | None
    disagree: tuple[str, ...]
    surely: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        return asdict(self)


def beside(variants: Sequence[VariantComparison], tasks: Sequence[str]) -> tuple[Beside, ...]:
    """Every text beside all questions (where there are several tasks) and beside every task."""
    texts = list(dict.fromkeys(name for variant in variants for name in variant.perplexity))
    return tuple(found for text in texts for found in _of(text, variants, tasks))


def _of(text: str, variants: Sequence[VariantComparison], tasks: Sequence[str]) -> Iterator[Beside]:
    held = [variant for variant in variants if text in variant.perplexity]
    scored = [name for name in tasks if any(_part(variant, name) for variant in held)]
    for name in [None, *scored] if len(scored) > 1 else scored:
        parts = [(variant, _part(variant, name)) for variant in held]
        known = [(variant, part) for variant, part in parts if part is not None]
        if not known:
            continue
        perplexity = [variant.perplexity[text].variant for variant, _ in known]
        accuracy = [part.variant for _, part in known]
        first, part = known[0]
        found = perplexity_beside(
            [first.perplexity[text].baseline, *perplexity], [part.base, *accuracy]
        )
        apart = [one for one, against in zip(known, found.disagree, strict=True) if against]
        yield Beside(
            texts=text,
            task=name,
            correlation=found.correlation if len(known) >= LEAST_VARIANTS else None,
            disagree=tuple(variant.name for variant, _ in apart),
            surely=tuple(variant.name for variant, part in apart if part.significant),
        )


def _part(variant: VariantComparison, name: str | None) -> Difference | None:
    if name is None:
        return variant.pooled
    task = variant.tasks.get(name)
    return task.overall if task is not None and task.is_accuracy else None

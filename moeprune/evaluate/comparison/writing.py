"""Written answers beside each other: do they end, and are they longer.

A pruned model that wanders does not only answer wrongly, it does not finish: truncation tracks the
loss (the paper on halved experts, section 6.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moeprune.core.sample import Sample
from moeprune.core.summary import LOOP, Lengths
from moeprune.evaluate.comparison.differences import Difference, difference, scores
from moeprune.evaluate.comparison.joining import Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Of the answers that both runs wrote.

    Attributes:
        truncation: difference of the shares of answers that used up their budget; its ``to_right``
            are the answers truncated in the variant alone, ``to_wrong`` in the base alone.
        tokens: difference of the tokens written, per answer, on its own scale.
        loops: difference of the shares of answers that fall into a repetition; None where that was
            not looked for.
        base: lengths of the base's answers.
        variant: of the variant's.
    """

    truncation: Difference
    tokens: Difference
    loops: Difference | None
    base: Lengths
    variant: Lengths

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        return asdict(self)


def writing(pairs: Sequence[Pair], *, level: float) -> Writing | None:
    """Compare truncation and lengths; None where nothing was written."""
    written = [pair for pair in pairs if all(sample.truncated is not None for sample in pair)]
    marked = [(_marked(one), _marked(other)) for one, other in written]
    truncation = difference(*scores(marked, "truncated"), level=level)
    tokens = difference(*scores(marked, "tokens"), level=level, scale=1)
    loops = difference(*scores(marked, LOOP), level=level)
    mine = Lengths.of(one.tokens for one, _ in written)
    theirs = Lengths.of(other.tokens for _, other in written)
    if truncation is None or tokens is None or mine is None or theirs is None:
        return None
    return Writing(truncation=truncation, tokens=tokens, loops=loops, base=mine, variant=theirs)


def _marked(sample: Sample) -> Sample:
    """Truncation and length as metrics, which are then compared as any other."""
    metrics = {**sample.metrics, "truncated": float(sample.truncated is True)}
    metrics["tokens"] = float(sample.tokens)
    return Sample(
        task=sample.task, domain=sample.domain, id=sample.id, seed=sample.seed, metrics=metrics
    )

"""What the demo measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Variant:
    """One row of the demo's table.

    Attributes:
        name: ``"unpruned"`` or the method.
        ratio: share of experts removed.
        accuracy: domain -> share of held-out questions answered right.
        domain_loss: domain -> share of router mass removed, empty for the unpruned model.
        difference: largest logit difference found by verify, None for the unpruned model.
        lost: questions right in the unpruned model and wrong here; None for itself.
        won: the other way round.
        p: of exact McNemar, corrected by Holm over the variants; None for the unpruned model.
    """

    name: str
    ratio: float
    accuracy: Mapping[str, float]
    domain_loss: Mapping[str, float]
    difference: float | None
    lost: int | None = None
    won: int | None = None
    p: float | None = None

    @property
    def worst_domain(self) -> str:
        """The domain with the lowest accuracy; of equals, the first by name."""
        return min(sorted(self.accuracy), key=self.accuracy.__getitem__)

    @property
    def mean(self) -> float:
        """Accuracy averaged over domains."""
        return sum(self.accuracy.values()) / len(self.accuracy)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo measured.

    Attributes:
        output: the folder that holds every artefact.
        variants: the unpruned model first, then ratio by ratio, method by method.
        questions: domain -> number of held-out questions.
        entropy_ratio: mean router entropy over its maximum.
        regime: ``"over-dispersed"`` or ``"standard"``.
    """

    output: Path
    variants: tuple[Variant, ...]
    questions: Mapping[str, int]
    entropy_ratio: float
    regime: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object of plain types."""
        return {
            "schema": "moeprune.demo/1",
            "questions": dict(self.questions),
            "entropy_ratio": self.entropy_ratio,
            "regime": self.regime,
            "variants": [
                {
                    "name": variant.name,
                    "ratio": variant.ratio,
                    "accuracy": dict(variant.accuracy),
                    "mean": variant.mean,
                    "worst_domain": variant.worst_domain,
                    "domain_loss": dict(variant.domain_loss),
                    "verify_difference": variant.difference,
                    "lost": variant.lost,
                    "won": variant.won,
                    "p_holm": variant.p,
                }
                for variant in self.variants
            ],
        }

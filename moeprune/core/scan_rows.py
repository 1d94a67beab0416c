"""What a scan of k₁ and k₂ measured of each point of its grid.

L MoE layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from moeprune.core.scan_grid import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFigures:
    """Of one split of the texts.

    Attributes:
        perplexity: exp(Σ nll / Σ tokens).
        ratio: over the native model's; None for itself.
        low: lower limit of its 95 % interval over windows; None where nothing is known of it.
        high: upper limit.
        p: two-sided, of ``ratio`` = 1, over windows; None for native, and of a single window.
    """

    perplexity: float
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFigures:
    """Of one task, against the native model on the same questions.

    Attributes:
        questions: how many.
        accuracy: share that is right.
        points: change, in points; None for the native model itself, as all that follows.
        low: lower limit of its 95 % interval.
        high: upper limit.
        lost: right in the native model and wrong here.
        won: the other way round.
        p: two-sided, exact McNemar.
        p_holm: corrected by Holm over rows × tasks.
        resolves: smallest change, in points, that would have shown.
    """

    questions: int
    accuracy: float
    points: float | None = None
    low: float | None = None
    high: float | None = None
    lost: int | None = None
    won: int | None = None
    p: float | None = None
    p_holm: float | None = None
    resolves: float | None = None

    @property
    def worse(self) -> bool:
        """Whether it is surely below the native model, at 5 %."""
        return self.p_holm is not None and self.p_holm < 0.05 and (self.points or 0) < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point of the grid.

    Attributes:
        point: which.
        gain: mean over tokens and layers of Σ_{top k₁} π / Σ_{top k₂} π, times the stated gain;
            None where routers do not tell their weights.
        gain_L: the same a layer that the policy reaches.
        texts: split -> figures.
        tasks: task -> figures, in the order asked.
        cost: what a token activates, see :class:`moeprune.core.cost.Cost`.
    """

    point: Point
    gain: float | None
    gain_L: tuple[float, ...]
    texts: Mapping[str, TextFigures]
    tasks: Mapping[str, TaskFigures]
    cost: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain types."""
        point = self.point
        return {
            "name": point.name,
            "kind": point.kind,
            "k1": point.k1,
            "k2": point.k2,
            "default_reduction": point.default,
            "policy": None if point.policy is None else point.policy.to_json(),
            "gain": self.gain,
            "gain_by_layer": list(self.gain_L),
            "texts": {name: asdict(figures) for name, figures in self.texts.items()},
            "tasks": {name: asdict(figures) for name, figures in self.tasks.items()},
            "cost": dict(self.cost),
        }

"""The difference of two runs on one group of questions, with its interval and its p.

N questions, S seeds. Yes or no under one seed: exact McNemar and Tango's interval. Several seeds,
or scores that are no yes or no: the sign-flip test of each question's mean difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moeprune.core.stats import Array
from moeprune.evaluate.comparison.joining import Pair
from moeprune.evaluate.paired.interval import tango
from moeprune.evaluate.paired.mcnemar import McNemar
from moeprune.evaluate.paired.repeated import repeated
from moeprune.evaluate.paired.resolution import resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The variant minus the base.

    Attributes:
        questions: N.
        seeds: S.
        base: mean score of the base, a fraction (or on the metric's own scale).
        variant: the same of the variant.
        scale: 100 for scores within [0, 1], whose differences are given in points, else 1.
        points: variant - base, in points (times ``scale``); below 0 = the variant is worse.
        low: lower limit of its interval, in points; None where nothing is known of it.
        high: upper limit.
        level: confidence of the interval.
        to_wrong: answers right in the base and wrong in the variant; None of other scores.
        to_right: answers wrong in the base and right in the variant.
        p: two-sided.
        method: of ``p``: exact, chi2-corrected, drawn, normal.
        mid_p: McNemar's mid-p; None but for yes or no under one seed.
        chi2_p: of McNemar's χ² with continuity correction; likewise.
        p_holm: ``p`` corrected for having looked at the whole family; None: of no family.
        resolves: smallest difference, in points, that so many questions show as significant when as
            many flip as were seen; None where none is large enough, or for other scores.
    """

    questions: int
    seeds: int
    base: float
    variant: float
    scale: float
    points: float
    low: float | None
    high: float | None
    level: float
    to_wrong: int | None
    to_right: int | None
    p: float
    method: str
    mid_p: float | None = None
    chi2_p: float | None = None
    p_holm: float | None = None
    resolves: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the corrected p (or p, of no family) is below 1 - level."""
        return (self.p if self.p_holm is None else self.p_holm) < 1 - self.level

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        return asdict(self)


def scores(pairs: Sequence[Pair], metric: str | None) -> tuple[Array, Array]:
    """(N, S) scores of the base and of the variant, of the questions that have all seeds.

    Args:
        pairs: answers, of which those without the score are left out.
        metric: a name in ``Sample.metrics``, or None for ``correct``.
    """
    rows: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for one, other in pairs:
        values = [
            sample.correct if metric is None else sample.metrics.get(metric)
            for sample in (one, other)
        ]
        if values[0] is not None and values[1] is not None:
            row = rows.setdefault((one.task, one.id), {})
            row[one.seed] = (float(values[0]), float(values[1]))
    seeds = sorted({seed for row in rows.values() for seed in row})
    # Sorted, so that sums do not depend on the order of a file by the last bit.
    held = [rows[key] for key in sorted(rows) if len(rows[key]) == len(seeds)]
    whole = [[row[seed] for seed in seeds] for row in held]
    table_NS2 = np.array(whole, dtype=np.float64).reshape(len(whole), len(seeds), 2)
    return table_NS2[:, :, 0], table_NS2[:, :, 1]


def difference(
    base_NS: Array, variant_NS: Array, *, level: float, scale: float | None = None
) -> Difference | None:
    """Compare the scores of the same questions.

    Args:
        base_NS: (N, S) scores.
        variant_NS: the same of the variant.
        level: confidence.
        scale: of the differences; None: 100 (points) where all scores lie within [0, 1], else 1.

    Returns:
        None where there is no question.
    """
    if not base_NS.size:
        return None
    both = np.concatenate([base_NS, variant_NS])
    binary = scale != 1 and bool(np.isin(both, (0, 1)).all())
    if scale is None:
        scale = 100.0 if both.min() >= 0 and both.max() <= 1 else 1.0
    questions, seeds = base_NS.shape
    lost = int(np.count_nonzero(base_NS > variant_NS)) if binary else None
    won = int(np.count_nonzero(base_NS < variant_NS)) if binary else None
    if binary and seeds == 1:
        assert lost is not None and won is not None
        test, limits = McNemar(lost, won, questions), tango(lost, won, questions, level=level)
        at = resolution(questions, discordant=test.discordant, level=level).paired
        return Difference(
            questions=questions,
            seeds=1,
            base=float(base_NS.mean()),
            variant=float(variant_NS.mean()),
            scale=scale,
            points=test.points,
            low=100 * limits.low,
            high=100 * limits.high,
            level=level,
            to_wrong=lost,
            to_right=won,
            p=test.p,
            method=test.method,
            mid_p=test.mid_p,
            chi2_p=test.chi2_corrected_p,
            resolves=None if at is None else 100 * at,
        )
    found = repeated(base_NS, variant_NS, level=level)
    interval = found.interval
    return Difference(
        questions=questions,
        seeds=seeds,
        base=found.baseline,
        variant=found.variant,
        scale=scale,
        points=scale * found.difference,
        low=None if interval is None else scale * interval.low,
        high=None if interval is None else scale * interval.high,
        level=level,
        to_wrong=lost,
        to_right=won,
        p=found.p,
        method=found.method,
        resolves=None if interval is None else scale * interval.half_width,
    )

"""The variants of a scan: the grid that the model allows, and what folded gains make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moeprune.core.plan import PrunePlan
from moeprune.core.policy_checks import rankable
from moeprune.core.policy_words import PolicyWords, Rank
from moeprune.core.scan_grid import Axes, Point, folded, grid
from moeprune.core.stats import CalibrationStats
from moeprune.errors import UsageError
from moeprune.stages.eval_model import AskedModel
from moeprune.stages.eval_variants import Variant
from moeprune.stages.folding import folded_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanWords:
    """What a user says of the grid; as :func:`moeprune.stages.scan.scan` takes it."""

    k1: Sequence[int] = ()
    k2: Sequence[Rank] = ()
    gain: Sequence[float] = ()
    ablations: bool = False
    stats: str | Path | CalibrationStats | None = None
    plan: PrunePlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A grid of a model.

    Attributes:
        axes: what spans it.
        points: the native model first.
        variants: of the evaluation, one a point.
    """

    axes: Axes
    points: tuple[Point, ...]
    variants: tuple[Variant, ...]


def points_of(words: ScanWords, asked: AskedModel) -> Points:
    """The grid, checked against the model.

    Raises:
        UsageError: no router of the model can take a point, or nothing is left to scan.
        MismatchError: the plan or the stats are of another model.
        UnsupportedModelError: the model has no experts, or routes in another way.
    """
    layout = asked.routed
    if words.plan is not None:
        asked.check_plan(words.plan)
    keep = [range(n) for n in layout.num_experts] if words.plan is None else words.plan.keep
    reach = [
        (rankable(layout, count, ids), len(ids))
        for count, ids in zip(layout.num_experts, keep, strict=True)
    ]
    experts = max(map(len, keep))
    axes = Axes(
        native=layout.native_policy,
        renormalises=layout.renormalises,
        experts=experts,
        reach=min([held for held, count in reach if held < count], default=experts),
        least=layout.least_top_k,
        k1=words.k1,
        k2=words.k2,
        gains=words.gain,
        ablations=words.ablations,
    )
    points = grid(axes)
    if words.stats is not None:
        points = (*points, *_folded(points, words, asked, keep))
    if len(points) == 1:
        raise UsageError(
            f"{asked.name} runs {axes.native.k1} of {experts} experts a token: there is nothing to "
            "scan. Name a --k1 or --k2 that is not its own."
        )
    variants = tuple(
        Variant(name=point.name, plan=words.plan, policy=point.policy) for point in points
    )
    for variant in variants:
        variant.check(asked)
    return Points(axes=axes, points=points, variants=variants)


def _folded(
    points: Sequence[Point], words: ScanWords, asked: AskedModel, keep: Sequence[Sequence[int]]
) -> list[Point]:
    """Of every point that a fold can stand for, what ``export --fold-gain`` writes."""
    stats, opened = words.stats, asked.opened
    assert stats is not None and opened is not None
    if not isinstance(stats, CalibrationStats):
        stats = CalibrationStats.load(Path(stats))
    found = []
    for point in points:
        if point.compared and not point.default:
            pair = PolicyWords(k1=point.k1, k2=point.k2)
            gain = folded_gain(stats, pair, layout=opened.layout, facts=opened.facts, keep=keep)
            found.append(folded(point, gain.policy(opened.layout)))
    return found

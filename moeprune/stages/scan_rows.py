"""From the runs of a scan to the rows of its table: paired against the native model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeprune.core.run import Run
from moeprune.core.scan_grid import Point
from moeprune.core.scan_rows import Row, TaskFigures, TextFigures
from moeprune.stages.costs import token_cost
from moeprune.stages.eval_model import AskedModel
from moeprune.stages.eval_texts import HELD_OUT, TUNING
from moeprune.stages.eval_variants import Variant

if TYPE_CHECKING:
    from moeprune.evaluate.comparison.differences import Difference
    from moeprune.evaluate.comparison.variants import VariantComparison

_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class PairedRuns:
    """Compares two rows of a scan on one task."""

    runs: Sequence[Run]

    def __call__(self, one: str, other: str, task: str) -> TaskFigures:
        """The second against the first."""
        from moeprune.evaluate.comparison.comparing import compare_runs

        of = {run.name: run for run in self.runs}
        (found,) = compare_runs(of[one], [of[other]], tasks=[task], level=_LEVEL).variants
        return _figures(found.tasks[task].overall)


def rows_of(
    asked: AskedModel,
    points: Sequence[Point],
    variants: Sequence[Variant],
    runs: Sequence[Run],
    gains: Sequence[Sequence[float]],
) -> tuple[Row, ...]:
    """One row a point, the native model first.

    Args:
        asked: the model.
        points: of the grid.
        variants: what each of them is.
        runs: their answers.
        gains: of each, by router.
    """
    from moeprune.evaluate.comparison.comparing import compare_runs

    base, *others = runs
    compared = compare_runs(base, others, level=_LEVEL).variants
    figures = [_native(compared[0]), *map(_against, compared)]
    assert asked.opened is not None
    rows = []
    for point, variant, gain_R, (texts, tasks) in zip(
        points, variants, gains, figures, strict=True
    ):
        keep = None if variant.plan is None else variant.plan.keep
        cost = token_cost(asked.opened, policy=variant.policy, keep=keep)
        rows.append(
            Row(
                point=point,
                gain=sum(gain_R) / len(gain_R) if gain_R else None,
                gain_L=tuple(gain_R),
                texts=texts,
                tasks=tasks,
                cost=cost.to_json(),
            )
        )
    return tuple(rows)


Figures = tuple[dict[str, TextFigures], dict[str, TaskFigures]]


def _native(first: VariantComparison) -> Figures:
    """The native model's own, as any comparison with it tells them."""
    texts = {
        name: TextFigures(perplexity=found.baseline)
        for name, found in first.perplexity.items()
        if name in (TUNING, HELD_OUT)
    }
    tasks = {
        name: TaskFigures(questions=found.overall.questions, accuracy=found.overall.base)
        for name, found in first.tasks.items()
        if found.is_accuracy
    }
    return texts, tasks


def _against(found: VariantComparison) -> Figures:
    texts = {}
    for name, one in found.perplexity.items():
        if name in (TUNING, HELD_OUT):
            limits = one.ratio_interval
            texts[name] = TextFigures(
                perplexity=one.variant,
                ratio=one.ratio,
                low=None if limits is None else limits.low,
                high=None if limits is None else limits.high,
                p=one.p,
            )
    tasks = {name: _figures(one.overall) for name, one in found.tasks.items() if one.is_accuracy}
    return texts, tasks


def _figures(found: Difference) -> TaskFigures:
    return TaskFigures(
        questions=found.questions,
        accuracy=found.variant,
        points=found.points,
        low=found.low,
        high=found.high,
        lost=found.to_wrong,
        won=found.to_right,
        p=found.p,
        p_holm=found.p_holm,
        resolves=found.resolves,
    )

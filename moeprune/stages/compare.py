"""compare: variants of a model against the unpruned one, question by question. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeprune.evaluate.comparison.comparing import Comparison, compare_runs
from moeprune.evaluate.comparison.regressions import Limit
from moeprune.stages.compare_runs import Source, compared


def compare(
    base: Source,
    variants: Source | Sequence[Source] = (),
    *,
    metric: str | Sequence[str] = (),
    tasks: Sequence[str] | None = None,
    level: float = 0.95,
    fail_on_regression: float | None = None,
    regression_by: str = "task",
    significant: bool = False,
    clusters: Mapping[str, Sequence[str]] | None = None,
) -> Comparison:
    """Compare runs on the same questions.

    Args:
        base: a run, a run folder, what ``lm_eval --log_samples`` wrote, or, without variants, a
            folder of runs one of which is the model as it is.
        variants: one or several of the same; a folder of runs stands for all of them.
        metric: what is compared instead of right or wrong: ``NAME`` for every task that has it, or
            ``TASK=NAME``.
        tasks: names; None: all that are shared.
        level: confidence of the intervals.
        fail_on_regression: points of accuracy that a variant may lose; what loses more is listed in
            the result's ``regressions``. The command line then exits with 1.
        regression_by: ``"task"``, ``"domain"`` or ``"overall"``: what that is looked for in.
        significant: a loss counts only where its p, corrected by Holm, is below 1 - level.
        clusters: two groups of tasks by name, for the trade-off; None: found in the figures.

    Raises:
        UsageError: an option that does not fit the runs, or nothing to compare.
        RunError: a run cannot be read.
        MismatchError: runs were not asked the same questions in the same way.
    """
    listed = [variants] if isinstance(variants, Source) else list(variants)
    found = compared(base, listed)
    limit = None
    if fail_on_regression is not None:
        limit = Limit(points=fail_on_regression, by=regression_by, significant=significant)
    return compare_runs(
        found.base,
        found.variants,
        metric=[metric] if isinstance(metric, str) else metric,
        tasks=tasks,
        level=level,
        limit=limit,
        clusters=clusters,
        same=found.same,
    )

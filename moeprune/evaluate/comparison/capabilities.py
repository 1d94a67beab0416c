"""What several variants trade for what: the accuracies of a comparison as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moeprune.errors import UsageError
from moeprune.evaluate.comparison.variants import VariantComparison
from moeprune.evaluate.paired.deltas import AccuracyTable
from moeprune.evaluate.paired.tradeoff import LEAST_VARIANTS, Tradeoff, tradeoff

LEAST_TASKS = 3


def capabilities(
    variants: Sequence[VariantComparison], *, clusters: Mapping[str, Sequence[str]] | None
) -> Tradeoff | None:
    """The trade-off over the tasks that all variants answered on the same questions.

    Args:
        variants: the comparisons.
        clusters: two groups of tasks by name; None: found in the table.

    Returns:
        None where there are too few variants or tasks and no groups were named.

    Raises:
        UsageError: groups were named that do not fit, or there is too little to compare.
    """
    tasks = [name for name in (variants[0].tasks if variants else ()) if _whole(name, variants)]
    if len(variants) < LEAST_VARIANTS or len(tasks) < LEAST_TASKS:
        if clusters:
            raise UsageError(
                f"groups of tasks need {LEAST_VARIANTS} variants and {LEAST_TASKS} tasks that all "
                f"of them answered; there are {len(variants)} and {len(tasks)}. Leave them out."
            )
        return None
    table = AccuracyTable(
        variants=tuple(variant.name for variant in variants),
        tasks=tuple(tasks),
        baseline_T=np.array([100 * variants[0].tasks[name].overall.base for name in tasks]),
        accuracy_VT=np.array(
            [[100 * one.tasks[name].overall.variant for name in tasks] for one in variants]
        ),
    )
    return tradeoff(table, clusters=clusters or None)


def tradeoff_json(found: Tradeoff) -> dict[str, Any]:
    """As plain types."""
    table = found.table
    return {
        "tasks": list(table.tasks),
        "variants": list(table.variants),
        "points": table.delta_VT.tolist(),
        "loadings": found.components.loading_CT.tolist(),
        "scores": found.components.score_VC.tolist(),
        "explained": found.components.share_C.tolist(),
        "clusters": found.clusters,
        "clusters_found": found.found,
        "cluster_points": {name: delta_V.tolist() for name, delta_V in found.deltas.items()},
        "characters": list(found.characters),
        "inversion": _fields(found.inversion),
        "inversion_with_base": _fields(found.inversion_with_baseline),
    }


def _fields(found: Any) -> dict[str, Any] | None:
    return None if found is None else {name: getattr(found, name) for name in found.__slots__}


def _whole(name: str, variants: Sequence[VariantComparison]) -> bool:
    held = [one.tasks[name] for one in variants if name in one.tasks]
    same = len({(task.overall.questions, task.overall.base) for task in held}) == 1
    return len(held) == len(variants) and same and held[0].is_accuracy

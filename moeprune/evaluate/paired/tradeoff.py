"""The capability trade-off over several variants and tasks, put together.

Section 5.1 and appendices B and C of the paper on over-dispersed models: along which tasks the
variants differ (PCA), two groups of tasks, each variant's mean change in both and a word for it,
and whether ranks invert between the groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeprune.core.stats import Array
from moeprune.errors import UsageError
from moeprune.evaluate.paired.clusters import found_clusters
from moeprune.evaluate.paired.deltas import (
    AccuracyTable,
    Clusters,
    characters,
    check_clusters,
    cluster_deltas,
)
from moeprune.evaluate.paired.inversion import Inversion, inversion
from moeprune.evaluate.paired.pca import Components, principal_components

LEAST_VARIANTS = 3
"""Variants, beside the baseline, below which ranks say nothing."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Tradeoff:
    """What several variants trade for what.

    Attributes:
        table: the accuracies, and with them the changes (table 3) and each variant's worst task.
        components: PCA over the variants, the baseline left out.
        clusters: two groups of tasks; None where the variants gain and lose on all tasks alike.
        found: the groups were read from this table, so the p of ``inversion`` is too small.
        deltas: group -> (V,) mean change in points (table 9); empty without groups.
        characters: a word for each variant, by the rule of ``deltas.characters``; empty likewise.
        inversion: ranks between the groups over the variants; None without groups.
        inversion_with_baseline: the same with the baseline as one more row.
    """

    table: AccuracyTable
    components: Components
    clusters: dict[str, list[str]] | None
    found: bool
    deltas: dict[str, Array]
    characters: tuple[str, ...]
    inversion: Inversion | None
    inversion_with_baseline: Inversion | None


def tradeoff(
    table: AccuracyTable,
    *,
    clusters: Clusters | None = None,
    standardise: bool = True,
    seed: int = 0,
) -> Tradeoff:
    """Analyse the trade-off between two groups of tasks.

    Args:
        table: accuracies in percent of at least ``LEAST_VARIANTS`` variants on at least two tasks.
        clusters: two groups of tasks by name, for example {"reasoning": [...], "knowledge": [...]};
            found in the loadings where not given, and then named A and B.
        standardise: PCA of standardised tasks. Not said by the paper, but with it, and not without,
            the groups found in its table 2 are those of its appendix C.
        seed: of drawn partitions, where there are too many to go through.

    Raises:
        UsageError: too few variants or tasks, or groups that do not fit the table.
    """
    if len(table.variants) < LEAST_VARIANTS or len(table.tasks) < 2:
        raise UsageError(
            f"a trade-off needs {LEAST_VARIANTS} variants beside the baseline and 2 tasks; "
            f"got {len(table.variants)} and {len(table.tasks)}."
        )
    components = principal_components(table.accuracy_VT, standardise=standardise)
    if clusters is None:
        groups = found_clusters(components, table.tasks)
    else:
        check_clusters(table, clusters)
        groups = {name: list(tasks) for name, tasks in clusters.items()}
        if len(groups) != 2:
            raise UsageError(f"a trade-off is between two groups of tasks; got {len(groups)}.")
    deltas = cluster_deltas(table, groups) if groups else {}
    ranks = with_baseline = None
    if groups:
        one, other = (table.columns(tasks) for tasks in groups.values())
        both_VT = np.vstack([table.accuracy_VT, table.baseline_T])
        ranks = inversion(table.accuracy_VT, one, other, seed=seed)
        with_baseline = inversion(both_VT, one, other, seed=seed)
    return Tradeoff(
        table=table,
        components=components,
        clusters=groups,
        found=clusters is None and groups is not None,
        deltas=deltas,
        characters=characters(deltas) if groups else (),
        inversion=ranks,
        inversion_with_baseline=with_baseline,
    )

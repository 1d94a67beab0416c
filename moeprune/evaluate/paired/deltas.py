"""Changes of accuracy against the baseline: by task, by group of tasks, and in a word.

The tables 3 and 9 of the paper on over-dispersed models. V variants, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moeprune.core.stats import Array
from moeprune.errors import UsageError
from moeprune.evaluate.paired.checks import finite

Clusters = Mapping[str, Sequence[str]]
"""Groups of tasks: name -> tasks, none in two groups, not necessarily all of them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AccuracyTable:
    """Accuracy of a baseline and its variants on the same tasks, in percent.

    Attributes:
        variants: (V,) names, the baseline left out.
        tasks: (T,) names.
        baseline_T: (T,) float64, the baseline's accuracy.
        accuracy_VT: (V, T) float64, that of the variants.
    """

    variants: tuple[str, ...]
    tasks: tuple[str, ...]
    baseline_T: Array
    accuracy_VT: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "baseline_T", finite(self.baseline_T, name="baseline accuracies"))
        accuracy_VT = finite(self.accuracy_VT, name="accuracies", ndim=2)
        object.__setattr__(self, "accuracy_VT", accuracy_VT)
        for what, names in (("variant", self.variants), ("task", self.tasks)):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice or not names:
                raise UsageError(f"a table needs {what}s of different names; got {names}.")
        shape = (len(self.variants), len(self.tasks))
        if accuracy_VT.shape != shape or self.baseline_T.shape != shape[1:]:
            raise UsageError(
                f"{shape[0]} variants on {shape[1]} tasks do not fit accuracies of shape "
                f"{accuracy_VT.shape} beside a baseline of {self.baseline_T.shape}."
            )

    @property
    def delta_VT(self) -> Array:
        """(V, T) float64: accuracy of the variant minus the baseline's, in points (table 3)."""
        return self.accuracy_VT - self.baseline_T

    def worst(self) -> tuple[tuple[str, float], ...]:
        """The task each variant lost most on, of equals the first, and its change in points."""
        delta_VT = self.delta_VT
        worst_V = delta_VT.argmin(axis=1)
        return tuple(
            (self.tasks[task], float(delta_T[task]))
            for task, delta_T in zip(worst_V, delta_VT, strict=True)
        )

    def columns(self, names: Sequence[str]) -> list[int]:
        """Positions of tasks.

        Raises:
            UsageError: none is named, one twice, or one that the table does not have.
        """
        unknown = [name for name in names if name not in self.tasks]
        if unknown:
            known = ", ".join(self.tasks)
            raise UsageError(f"there is no task {unknown[0]} in the table; it has {known}.")
        if not names or len(set(names)) < len(names):
            raise UsageError(f"a group of tasks names each once and at least one; got {names}.")
        return [self.tasks.index(name) for name in names]


def cluster_deltas(table: AccuracyTable, clusters: Clusters) -> dict[str, Array]:
    """Mean change over the tasks of each group: Δ_R and Δ_K of the paper's table 9.

    Args:
        table: accuracies.
        clusters: groups of tasks.

    Returns:
        Group -> (V,) float64 points, in the order of ``clusters``.

    Raises:
        UsageError: a group is empty, names an unknown task, or shares one with another group.
    """
    check_clusters(table, clusters)
    return {
        name: np.asarray(table.delta_VT[:, table.columns(tasks)].mean(axis=1))
        for name, tasks in clusters.items()
    }


def check_clusters(table: AccuracyTable, clusters: Clusters) -> None:
    """Refuse groups of tasks that do not fit the table.

    Raises:
        UsageError: a group is empty, names an unknown task, or shares one with another group.
    """
    seen: dict[str, str] = {}
    for name, tasks in clusters.items():
        table.columns(tasks)
        for task in tasks:
            if task in seen:
                raise UsageError(f"task {task} is in the groups {seen[task]} and {name}; keep one.")
            seen[task] = name


def characters(deltas: Mapping[str, Array], *, least: float = 1.0) -> tuple[str, ...]:
    """A word for each variant's place between two groups of tasks, by one stated rule.

    A loss is -Δ, or 0 where Δ is a gain. A group's loss is *large* if it is at least half of the
    largest loss that any variant has in that group (or of ``least`` points, if that is more: losses
    below half a point are never large). Large in none: ``balanced``; in one: the *other* group is
    preserved, ``<group>-preserving``; in both: ``losing both``. The paper gives its five words
    without a rule; this one tells the methods of its table 9 apart in the same way (its "severe
    collapse" is the last of them: the rule is relative, and does not say how severe).

    Args:
        deltas: two groups -> (V,) mean changes in points, as from ``cluster_deltas``.
        least: the smallest scale of losses, in points.

    Raises:
        UsageError: not two groups.
    """
    if len(deltas) != 2:
        raise UsageError(f"a trade-off is between two groups of tasks; got {len(deltas)}.")
    large = {}
    for name, delta_V in deltas.items():
        loss_V = np.maximum(0, -delta_V)
        large[name] = loss_V >= max(least, float(loss_V.max(initial=0))) / 2
    first, second = large
    words = {
        (False, False): "balanced",
        (False, True): f"{first}-preserving",
        (True, False): f"{second}-preserving",
        (True, True): "losing both",
    }
    return tuple(words[pair] for pair in zip(*(x.tolist() for x in large.values()), strict=True))

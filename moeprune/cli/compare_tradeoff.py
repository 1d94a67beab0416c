"""What several variants trade for what, as tables: loadings, the paper's table 9, ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from moeprune.cli.compare_cells import number, p_value
from moeprune.cli.compare_sections import Section

if TYPE_CHECKING:
    from moeprune.evaluate.paired.inversion import Inversion
    from moeprune.evaluate.paired.tradeoff import Tradeoff


def tradeoff_sections(found: Tradeoff | None) -> Iterator[Section]:
    """Loadings of the tasks, and the change by group of tasks."""
    if found is None:
        return
    yield _loadings(found)
    if found.clusters:
        yield _groups(found)


def _loadings(found: Tradeoff) -> Section:
    parts = found.components
    groups = {task: name for name, tasks in (found.clusters or {}).items() for task in tasks}
    shown = range(min(2, len(parts.share_C)))
    rows = [["task", "group", *(f"PC{at + 1} {parts.share_C[at]:.0%}" for at in shown)]]
    for column, task in enumerate(found.table.tasks):
        loads = [f"{parts.loading_CT[at, column]:+.2f}" for at in shown]
        rows.append([task, groups.get(task, "-"), *loads])
    alike = (
        "The variants gain and lose on all tasks alike, so there are no two groups to trade off."
    )
    return Section(
        "along which tasks the variants differ (principal components of their accuracies)",
        rows,
        [] if found.clusters else [alike],
    )


def _groups(found: Tradeoff) -> Section:
    names = list(found.deltas)
    rows = [["variant", *names, "character"]]
    for at, variant in enumerate(found.table.variants):
        points = [f"{found.deltas[name][at]:+.2f}" for name in names]
        rows.append([variant, *points, found.characters[at]])
    notes = [
        _inversion(found.inversion, "variants"),
        _inversion(found.inversion_with_baseline, "variants and the base"),
    ]
    if found.found:
        notes.append(
            "The groups were found in these same figures, so this p is too small; name your own "
            "with --cluster."
        )
    return Section("mean change by group of tasks, points", rows, [note for note in notes if note])


def _inversion(found: Inversion | None, what: str) -> str:
    if found is None or found.rho is None:
        return ""
    return (
        f"Ranks of the {what} between the groups: ρ = {number(found.rho)}, p "
        f"{p_value(found.p, sign=True)} over {found.partitions:,} groupings of the same sizes "
        "(-1: they invert)."
    )

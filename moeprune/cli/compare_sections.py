"""What a comparison shows, as tables of cells: for a terminal and for Markdown alike.

The worst domain of each variant first, then tasks, domains, seeds; ``compare_beside`` has the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeprune.cli.compare_cells import (
    change,
    flips,
    number,
    p_value,
    place,
    plural,
    score,
    signed,
)

if TYPE_CHECKING:
    from moeprune.evaluate.comparison.comparing import Comparison
    from moeprune.evaluate.comparison.differences import Difference
    from moeprune.evaluate.comparison.variants import TaskComparison, VariantComparison

SHOWN = 12  # domains, where all were not asked for
COLUMNS = 4  # variants beside each other


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a title, and lines under it; the first row, if any, names the columns."""

    title: str
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def sections(found: Comparison, *, all_domains: bool, by_seed: bool) -> Iterator[Section]:
    """Worst domains, tasks and domains, in the order they are read."""
    yield from _worst(found)
    yield from _changes(found)
    yield from _tasks(found)
    yield from _domains(found, len(_divided(found)) if all_domains else SHOWN)
    yield from _seeds(found) if by_seed else ()


def _worst(found: Comparison) -> Iterator[Section]:
    rows = [["variant", "worst domain", "n", "change, points", "lost/won", "p", "Holm p"]]
    held = [(one.worst, one.name) for one in found.variants if one.worst is not None]
    for (task, domain, part), name in sorted(held, key=lambda item: item[0][2].points):
        rows.append([name, place(task, domain), *_short(part)])
    if not held:
        return
    tests = found.families["domains"]
    notes = [f"Holm over {plural(tests, 'test')}: every domain of every variant."]
    if tests > len(found.variants):
        notes.append(
            "The worst of many domains is partly the unluckiest: read its interval, not its change."
        )
    yield Section("worst domain of each variant", rows, notes)


def _short(part: Difference) -> list[str]:
    return [
        f"{part.questions:,}",
        change(part),
        flips(part),
        p_value(part.p),
        p_value(part.p_holm),
    ]


def _changes(found: Comparison) -> Iterator[Section]:
    """Tasks by variants, as in the tables of papers: only where there are several of both."""
    names = _task_names(found)
    if len(names) < 2 or len(found.variants) < 2:
        return
    for start in range(0, len(found.variants), COLUMNS):
        block = found.variants[start : start + COLUMNS]
        rows = [["task", found.base, *(one.name for one in block)]]
        for name in names:
            parts = [one.tasks[name].overall for one in found.variants if name in one.tasks]
            best = max(round(part.points, 9) for part in parts)
            cells = [
                f"{_marked(one.tasks[name].overall)}"
                f"{'^' if round(one.tasks[name].overall.points, 9) == best else ' '}"
                if name in one.tasks
                else "-  "
                for one in block
            ]
            rows.append([name, score(parts[0], parts[0].base), *cells])
        notes = [
            f"* Holm p < {1 - found.level:.3g} over {found.families['tasks']:,} tests; ^ best."
        ]
        yield Section("change by task, points", rows, notes)


def _task_names(found: Comparison) -> list[str]:
    return list(dict.fromkeys(name for one in found.variants for name in one.tasks))


def _tasks(found: Comparison) -> Iterator[Section]:
    if len(found.variants) == 1 and len(_task_names(found)) > 1:
        yield _one_variant(found, found.variants[0])
        return
    for name in _task_names(found):
        held = [(one, one.tasks[name]) for one in found.variants if name in one.tasks]
        parts = [(one.name, task.overall) for one, task in held]
        yield _table(found, _title(name, held[0][1]), parts)
    together = {
        name for one in found.variants for name, task in one.tasks.items() if task.is_accuracy
    }
    pooled = [(one.name, one.pooled) for one in found.variants if one.pooled is not None]
    if len(together) > 1 and pooled:
        means = [
            f"{one.name} {signed(one.mean_of_tasks, 2)}"
            for one in found.variants
            if one.mean_of_tasks is not None
        ]
        notes = [f"Every task the same weight: {', '.join(means)} points."]
        yield _table(found, "all tasks together", pooled, notes=notes)


def _one_variant(found: Comparison, variant: VariantComparison) -> Section:
    """Of a single variant: its tasks under each other."""
    rows = [
        ["task", "n", found.base, variant.name, "change", "lost/won", "p", "Holm p", "resolves"]
    ]
    parts = [(_title(name, task), task.overall) for name, task in variant.tasks.items()]
    together = sum(task.is_accuracy for task in variant.tasks.values())
    if together > 1 and variant.pooled is not None:
        parts.append(("all together", variant.pooled))
    for name, part in parts:
        counted = [f"{part.questions:,}", score(part, part.base)]
        rows.append([name, *counted, *_tested(part)])
    notes = [
        f"{name}: each question under {part.seeds} seeds." for name, part in parts if part.seeds > 1
    ]
    if together > 1 and variant.mean_of_tasks is not None:
        notes.append(f"Every task the same weight: {signed(variant.mean_of_tasks, 2)} points.")
    return Section("change by task, points", rows, notes)


def _title(name: str, task: TaskComparison) -> str:
    if task.kind == "degeneration" and not task.metric:
        return f"{name} (no loop)"
    return f"{name} by {task.metric}" if task.metric else name


def _table(
    found: Comparison,
    title: str,
    parts: Sequence[tuple[str, Difference]],
    notes: Sequence[str] = (),
) -> Section:
    alike = len({(part.questions, part.base) for _, part in parts}) == 1
    first = parts[0][1]
    unit = "points" if first.scale != 1 else "its own unit"
    own = [] if alike else ["n", found.base]
    rows = [["variant", *own, "score", f"change, {unit}", "lost/won", "p", "Holm p", "resolves"]]
    for name, part in parts:
        counted = [] if alike else [f"{part.questions:,}", score(part, part.base)]
        rows.append([name, *counted, *_tested(part)])
    if alike:
        title += (
            f": {plural(first.questions, 'question')}, {found.base} {score(first, first.base)}"
            + (f", {first.seeds} seeds each" if first.seeds > 1 else "")
        )
    return Section(title, rows, notes)


def _tested(part: Difference) -> list[str]:
    return [
        score(part, part.variant),
        change(part),
        flips(part),
        p_value(part.p),
        p_value(part.p_holm),
        number(part.resolves),
    ]


def _divided(found: Comparison) -> list[tuple[str, str]]:
    """(task, domain) of tasks with several domains, the one where any variant lost most first."""
    worst: dict[tuple[str, str], float] = {}
    for variant in found.variants:
        for name, task in variant.tasks.items():
            for domain, part in task.domains.items() if len(task.domains) > 1 else ():
                key = (name, domain)
                worst[key] = min(worst.get(key, part.points), part.points)
    return sorted(worst, key=lambda key: (worst[key], key))


def _domains(found: Comparison, shown: int) -> Iterator[Section]:
    keys = _divided(found)
    for start in range(0, len(found.variants), COLUMNS) if keys else ():
        block = found.variants[start : start + COLUMNS]
        rows = [["domain", "n", found.base, *(one.name for one in block)]]
        for task, domain in keys[:shown]:
            parts = [_domain(one, task, domain) for one in block]
            first = next((part for part in parts if part is not None), None)
            if first is not None:
                cells = ["-" if part is None else _marked(part) for part in parts]
                counted = [f"{first.questions:,}", score(first, first.base)]
                rows.append([place(task, domain), *counted, *cells])
        notes = [f"* Holm p < {1 - found.level:.3g} over {found.families['domains']:,} tests."]
        if len(keys) > shown:
            notes.append(f"{len(keys) - shown} more: --all-domains, or --json.")
        yield Section("change by domain, points, the worst first", rows, notes)


def _domain(variant: VariantComparison, task: str, domain: str) -> Difference | None:
    return variant.tasks[task].domains.get(domain) if task in variant.tasks else None


def _marked(part: Difference) -> str:
    return f"{signed(part.points, 2)}{'*' if part.significant else ' '}"


def _seeds(found: Comparison) -> Iterator[Section]:
    rows = [["variant", "task", "seed", "n", "change, points", "lost/won", "p"]]
    for variant in found.variants:
        for name, task in variant.tasks.items():
            for seed, part in task.by_seed.items():
                rows.append([variant.name, name, str(seed), *_short(part)[:-1]])
    if len(rows) > 1:
        yield Section("each seed alone: its p-values are not corrected", rows)

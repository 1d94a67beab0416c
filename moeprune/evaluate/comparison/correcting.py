"""Holm's correction over what one table shows, since whoever reads it looks at all of it.

Three families, each corrected by itself: variants x tasks, variants x domains, and the variants
over all questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from moeprune.evaluate.comparison.differences import Difference
from moeprune.evaluate.comparison.variants import TaskComparison, VariantComparison
from moeprune.evaluate.paired.holm import holm

Place = tuple[int, str, str]  # variant, task, domain


def corrected(
    variants: Sequence[VariantComparison],
) -> tuple[tuple[VariantComparison, ...], dict[str, int]]:
    """The same comparisons with ``p_holm``, and family -> how many tests are in it."""
    overall: dict[Place, Difference] = {}
    domains: dict[Place, Difference] = {}
    pooled: dict[Place, Difference] = {}
    for number, variant in enumerate(variants):
        for name, task in variant.tasks.items():
            overall[number, name, ""] = task.overall
            domains |= {(number, name, domain): part for domain, part in task.domains.items()}
        if variant.pooled is not None:
            pooled[number, "", ""] = variant.pooled
    families = {"tasks": overall, "domains": domains, "overall": pooled}
    of_task, of_domain, of_all = (_holm(family) for family in families.values())
    found = tuple(
        replace(
            variant,
            tasks={
                name: _task(task, number, name, of_task, of_domain)
                for name, task in variant.tasks.items()
            },
            pooled=of_all.get((number, "", "")),
        )
        for number, variant in enumerate(variants)
    )
    return found, {name: len(family) for name, family in families.items()}


def _task(
    task: TaskComparison,
    number: int,
    name: str,
    overall: Mapping[Place, Difference],
    domains: Mapping[Place, Difference],
) -> TaskComparison:
    parts = {domain: domains[number, name, domain] for domain in task.domains}
    return replace(task, overall=overall[number, name, ""], domains=parts)


def _holm(family: Mapping[Place, Difference]) -> dict[Place, Difference]:
    adjusted = holm([part.p for part in family.values()])
    return {
        place: replace(part, p_holm=float(p))
        for (place, part), p in zip(family.items(), adjusted, strict=True)
    }

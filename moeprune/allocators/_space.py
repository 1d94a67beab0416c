"""The genomes that a budget allows: whole units, floors, one fixed total.

A genome is written in levels: how many units a row loses beyond the fewest it can. Levels are any
integers from 0 to the row's top with the right sum, so patterns and mutations know nothing of
groups, multiples or floors.

L MoE layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeprune.core.budget import Budget
from moeprune.core.choice import keep_highest
from moeprune.core.fitness import Counts

Levels = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """All genomes of one budget.

    Attributes:
        base: (L,) the fewest experts each row loses.
        top: (L,) the most units it loses beyond that.
        unit: experts of a unit.
        start: the genome the search starts from.
    """

    base: Counts
    top: Levels
    unit: int
    start: Counts

    @classmethod
    def of(cls, budget: Budget, start: Counts | None = None) -> Space:
        """The genomes of a budget.

        A row that loses experts keeps a multiple of the unit, so whole units move between rows; a
        row whose experts are no multiple of it never goes back to losing none. Where a row's number
        was asked for, it stays.

        Args:
            budget: how many may leave where.
            start: a genome of the budget; None: the evenest one.
        """
        start = _even(budget) if start is None else start
        assert sum(start) <= budget.remove_total  # less where a chunk did not fit, see Budget
        base, top = [], []
        least_L = budget.min_remove or (0,) * len(start)
        rows = zip(budget.num_experts, start, least_L, budget.max_remove, strict=True)
        for count, leave, least, most in rows:
            assert least <= leave <= most
            closed = least == most or (leave == 0 and count % budget.unit > 0)
            base.append(leave if closed else leave % budget.unit)
            top.append(0 if closed else (most - leave % budget.unit) // budget.unit)
        return cls(tuple(base), tuple(top), budget.unit, start)

    @property
    def total(self) -> int:
        """Units that every genome removes beyond the base."""
        return sum(self.levels(self.start))

    def levels(self, counts: Counts) -> Levels:
        """A genome in levels."""
        return tuple((c - b) // self.unit for c, b in zip(counts, self.base, strict=True))

    def counts(self, levels: Levels) -> Counts:
        """Levels as a genome."""
        return tuple(b + level * self.unit for b, level in zip(self.base, levels, strict=True))


def _even(budget: Budget) -> Counts:
    """The same share of every layer, as far as units and floors go."""
    place_LE = np.zeros((len(budget.num_experts), max(budget.num_experts)))
    for row, count in enumerate(budget.num_experts):
        place_LE[row, :count] = np.arange(count) / count
    # What is protected is a matter of which experts, not of how many: max_remove has its room.
    keep_LE = keep_highest(place_LE, budget)
    leave_L = np.array(budget.num_experts) - keep_LE.sum(axis=1)
    return tuple(int(leave) for leave in leave_L)

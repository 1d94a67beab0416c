"""The rules of a budget as rows of a mixed-integer program.

Variables are the X undecided experts, 1 = leaves, and then the steps: how many chunks leave each
layer, where layers compete in chunks or router groups. A layer's first chunk may be smaller than
the unit and is then a step of its own.

L MoE layers, X undecided experts, G router groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moeprune.allocators._core import Core
from moeprune.allocators._problem import Ids, Problem


@dataclass(slots=True)
class Rules:
    """Rows ``low <= Σ value · variable <= high``.

    Attributes:
        experts: X.
        most: the most of each step variable.
        low: one for each row.
        high: one for each row.
    """

    experts: int
    most: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _ends: list[int] = field(default_factory=lambda: [0])

    def step(self, most: float) -> int:
        """A new step variable from 0 to ``most``; its column."""
        self.most.append(most)
        return self.experts + len(self.most) - 1

    def row(
        self, experts: Ids, low: float, high: float, *, steps: dict[int, float] | None = None
    ) -> None:
        """A new row: the sum of some experts and of steps times their values."""
        steps = steps or {}
        self._columns += [*experts.tolist(), *steps]
        self._values += [1.0] * experts.size + list(steps.values())
        self._ends.append(len(self._columns))
        self.low.append(low)
        self.high.append(high)

    def matrix(self, columns: int) -> Any:
        """The rows as a sparse matrix."""
        from scipy.sparse import csr_array

        return csr_array((self._values, self._columns, self._ends), shape=(len(self.low), columns))


def rules_of(problem: Problem, core: Core, ids: Ids) -> Rules:
    """What the undecided experts must obey.

    Args:
        problem: what may leave.
        core: what is decided.
        ids: (X,) the undecided experts.
    """
    rules = Rules(ids.size)
    gone_LE = core.leave_N.reshape(problem.shape)
    layer_X = ids // problem.shape[1]
    if problem.single:
        rest = float(problem.total - gone_LE.sum())
        rules.row(np.arange(ids.size), rest, rest)
        for row, most in enumerate(problem.budget.max_remove):
            mine, room = np.flatnonzero(layer_X == row), float(most - gone_LE[row].sum())
            if mine.size > room or (mine.size and problem.fixed_L[row]):
                rules.row(mine, room if problem.fixed_L[row] else 0.0, room)
        return rules
    groups = problem.budget.num_groups
    all_steps: dict[int, float] = {}
    for row, (count, most) in enumerate(
        zip(problem.budget.num_experts, problem.budget.max_remove, strict=True)
    ):
        fixed = bool(problem.fixed_L[row])
        steps = {} if fixed or not most else _steps(rules, count, most, problem)
        all_steps |= steps
        per = count // groups
        for group in range(groups):
            at = slice(group * per, (group + 1) * per)
            expert_X = ids - row * problem.shape[1]
            mine = np.flatnonzero((expert_X >= at.start) & (expert_X < at.stop))
            goal = float((most // groups if fixed else 0) - gone_LE[row, at].sum())
            if mine.size or steps:
                shares = {column: -size / groups for column, size in steps.items()}
                rules.row(mine, goal, goal, steps=shares)
    if all_steps:
        rest = problem.total - int(np.array(problem.budget.max_remove)[problem.fixed_L].sum())
        rules.row(ids[:0], rest, rest, steps=all_steps)
    return rules


def _steps(rules: Rules, count: int, most: int, problem: Problem) -> dict[int, float]:
    """The step variables of a layer: column -> experts that leave with a step."""
    unit = problem.budget.unit
    first = count % unit
    steps = {rules.step(1.0): float(first)} if first else {}
    further = (most - first) // unit
    if further:
        column = rules.step(float(further))
        for before in steps:  # later chunks only after the first
            rules.row(np.arange(0), -np.inf, 0.0, steps={column: 1.0, before: -float(further)})
        steps[column] = float(unit)
    return steps

"""Every plan that a budget allows, one by one: the slow answer that the fast ones must give."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st
from synthetic import facts

from moeprune.core.budget import Budget
from moeprune.core.constraints import Constraints
from moeprune.errors import UsageError


def layer_plans(budget: Budget, row: int) -> Iterator[tuple[int, ...]]:
    """Every set of ids that may leave one layer."""
    count, most, groups = budget.num_experts[row], budget.max_remove[row], budget.num_groups
    closed = set(budget.protected[row]) if budget.protected else set()
    least = budget.min_remove[row] if budget.min_remove else 0
    for leave in range(least, most + 1):
        if budget.allocation == "uniform" and leave != most:
            continue
        if leave and (count - leave) % budget.unit:
            continue
        for ids in itertools.combinations(range(count), leave):
            each = [sum(e * groups // count == g for e in ids) for g in range(groups)]
            if len(set(each)) == 1 and not closed & set(ids):
                yield ids


def losses(worth_DLE: Any, budget: Budget, total: int) -> Any:
    """(plans, D) what every plan that removes ``total`` experts costs each domain."""
    share_DLE = worth_DLE / worth_DLE.sum(axis=(1, 2), keepdims=True)
    by_count = {0: np.zeros((1, len(worth_DLE)))}
    for row in range(len(budget.num_experts)):
        grown: dict[int, list[Any]] = {}
        for ids in layer_plans(budget, row):
            cost_D = share_DLE[:, row, list(ids)].sum(axis=1)
            for count, loss_PD in by_count.items():
                grown.setdefault(count + len(ids), []).append(loss_PD + cost_D)
        by_count = {count: np.concatenate(parts) for count, parts in grown.items()}
    return by_count[total]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Budget] | None:
    """(D, L, E) worth, rows normalised to 1, and a budget, small enough for brute force."""
    groups = draw(st.sampled_from([1, 1, 2]))
    per_group = st.integers(2, 6 // groups + 1)
    experts = [groups * size for size in draw(st.lists(per_group, min_size=1, max_size=3))]
    allocation = draw(st.sampled_from(["uniform", "global"]))
    model = facts(experts, top_k=draw(st.integers(1, 2)), groups=groups)
    own = {}  # some layers have a count of their own
    if draw(st.booleans()):
        own = {row: draw(st.integers(1, n)) for row, n in enumerate(experts) if draw(st.booleans())}
    try:
        budget = Budget.of(
            model,
            constraints=Constraints.of(model, layer_keep=own),
            ratio=draw(st.integers(10, 70)) / 100,
            keep=None,
            allocation=allocation,
            multiple_of=draw(st.sampled_from([1, 1, 2, 3])),
        )
    except UsageError:
        return None
    if draw(st.booleans()):
        budget = _protecting(draw, budget)
    domains = draw(st.integers(1, 4))
    levels = draw(st.sampled_from([2, 5, 10**6]))  # few levels: many ties
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    worth_DLE = np.zeros((domains, len(experts), max(experts)))
    for row, count in enumerate(experts):
        drawn_DE = rng.integers(0, levels, (domains, count)) + 1.0
        if draw(st.booleans()):  # a few experts hold all but a trace, as where routing is peaked
            drawn_DE[:, draw(st.integers(1, 3)) :] *= 10.0 ** -draw(st.integers(3, 18))
        worth_DLE[:, row, :count] = drawn_DE / drawn_DE.sum(axis=1, keepdims=True)
    return worth_DLE, budget


def _protecting(draw: st.DrawFn, budget: Budget) -> Budget:
    """The same budget, in which some experts may not leave; as many as there is room for."""
    protected = []
    for count, most in zip(budget.num_experts, budget.max_remove, strict=True):
        per = count // budget.num_groups
        room = per - most // budget.num_groups
        ids: list[int] = []
        for group in range(budget.num_groups):
            some = st.sets(st.integers(0, per - 1), max_size=room)
            ids += [group * per + e for e in draw(some)]
        protected.append(tuple(sorted(ids)))
    return Budget(
        allocation=budget.allocation,
        num_experts=budget.num_experts,
        num_groups=budget.num_groups,
        unit=budget.unit,
        max_remove=budget.max_remove,
        min_remove=budget.min_remove,
        remove_total=budget.remove_total,
        protected=tuple(protected),
    )

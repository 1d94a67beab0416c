"""keep_highest against brute force over every removal that the rules allow."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import facts

from moeprune.core.budget import Budget, limits
from moeprune.core.choice import (
    domain_loss,
    jaccard,
    keep_counts,
    keep_highest,
    leaving_orders,
    real_LE,
)
from moeprune.errors import UsageError


def budget_of(model, **asked):
    return Budget.of(model, **{"ratio": None, "keep": None, "allocation": "uniform", **asked})


def allowed(experts, groups, unit, min_keep):
    """Every set of ids that may leave one layer."""
    for count in range(experts + 1):
        kept = experts - count
        if count and (kept < min_keep or kept % unit):
            continue
        for ids in itertools.combinations(range(experts), count):
            per_group = [sum(e * groups // experts == g for e in ids) for g in range(groups)]
            if len(set(per_group)) == 1:
                yield ids


def least_removed(score_LE, model, total, multiple_of, *, uniform):
    """The smallest sum of scores that ``total`` allowed experts can have."""
    limit = limits(model, multiple_of=multiple_of)
    best_by_count = []
    for row, experts in enumerate(model.num_experts):
        best = {}
        for ids in allowed(experts, model.num_groups, limit.unit, limit.min_keep):
            value = sum(score_LE[row, e] for e in ids)
            best[len(ids)] = min(best.get(len(ids), np.inf), value)
        best_by_count.append(best)
    found = np.inf
    for counts in itertools.product(*best_by_count):
        if sum(counts) == total and (not uniform or len(set(counts)) == 1):
            values = (best[n] for best, n in zip(best_by_count, counts, strict=True))
            found = min(found, sum(values))
    return found


CASES = [
    # experts, top_k, groups, top_groups, multiple_of, ratio
    ([6, 6], 2, 1, 1, 1, 0.4),
    ([6, 6, 5], 1, 1, 1, 1, 0.5),
    ([3, 7], 2, 1, 1, 1, 0.35),
    ([8, 8], 2, 1, 1, 2, 0.5),
    ([8, 8], 1, 1, 1, 4, 0.5),
    ([8, 8], 2, 2, 1, 1, 0.4),
    ([9, 9], 2, 3, 2, 1, 0.34),
    ([8, 8], 2, 2, 1, 4, 0.5),
    ([6], 2, 1, 1, 1, 0.5),
]


@pytest.mark.parametrize("allocation", ["uniform", "global"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_removes_the_least_total_score(case, allocation, seed):
    experts, top_k, groups, top_groups, multiple_of, ratio = case
    if allocation == "uniform" and len(set(experts)) > 1:
        experts = experts[:1]
    model = facts(experts, top_k=top_k, groups=groups, top_groups=top_groups)
    budget = budget_of(model, ratio=ratio, allocation=allocation, multiple_of=multiple_of)
    score_LE = np.random.default_rng(seed).random((len(experts), max(experts)))
    keep_LE = keep_highest(score_LE, budget)
    removed_LE = real_LE(model.num_experts) & ~keep_LE
    assert removed_LE.sum() == budget.remove_total
    want = least_removed(
        score_LE, model, budget.remove_total, multiple_of, uniform=allocation == "uniform"
    )
    assert score_LE[removed_LE].sum() == pytest.approx(want, rel=1e-12)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_budget_floors_groups_and_units_hold(data):
    groups = data.draw(st.sampled_from([1, 1, 2, 4]))
    per_group = data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=4))
    experts = [groups * count for count in per_group]
    top_groups = max(1, groups // 2)
    top_k = data.draw(st.integers(1, min(experts) // groups * top_groups))
    multiple_of = data.draw(st.sampled_from([1, 1, 2, 3, 4]))
    allocation = data.draw(st.sampled_from(["uniform", "global"]))
    ratio = data.draw(st.integers(1, 99)) / 100
    model = facts(experts, top_k=top_k, groups=groups, top_groups=top_groups)
    try:
        budget = budget_of(model, ratio=ratio, allocation=allocation, multiple_of=multiple_of)
    except UsageError:
        return
    levels = data.draw(st.integers(1, 50))  # few levels: many ties
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    score_LE = rng.integers(0, levels, (len(experts), max(experts))) / levels
    keep_LE = keep_highest(score_LE, budget)
    limit = limits(model, multiple_of=multiple_of)

    assert not keep_LE[~real_LE(model.num_experts)].any()
    removed = sum(experts) - int(keep_LE.sum())
    if allocation == "uniform" or all(count % limit.unit == 0 for count in experts):
        assert removed == budget.remove_total
    else:
        assert budget.remove_total - limit.unit < removed <= budget.remove_total
    assert removed > 0
    for row, count in enumerate(experts):
        kept_E = keep_LE[row, :count]
        if kept_E.all():
            continue
        assert kept_E.sum() >= max(top_k, limit.min_keep)
        assert kept_E.sum() % limit.unit == 0
        per_group_G = kept_E.reshape(groups, -1).sum(axis=1)
        assert len(set(per_group_G)) == 1
        if groups > 1:
            assert per_group_G[0] >= 2
            assert per_group_G[0] * top_groups >= top_k
        # No kept expert of a group is worth less than one that left it.
        for kept, score in zip(
            kept_E.reshape(groups, -1), score_LE[row, :count].reshape(groups, -1), strict=True
        ):
            assert score[kept].min() >= score[~kept].max()


def test_ties_leave_by_layer_then_by_id():
    model = facts([4, 4], top_k=1)
    keep_LE = keep_highest(np.ones((2, 4)), budget_of(model, ratio=0.375, allocation="global"))
    assert keep_LE.tolist() == [[False, False, True, True], [False, True, True, True]]


@pytest.mark.parametrize("seed", range(3))
def test_many_ties_leave_by_layer_then_by_id(seed):
    """More equal scores than an unstable sort leaves in place by luck."""
    score_LE = np.random.default_rng(seed).integers(0, 3, (3, 80)).astype(float)
    budget = budget_of(facts([80] * 3, top_k=1), ratio=0.45, allocation="global")
    every = [(score_LE[row, e], row, e) for row in range(3) for e in range(80)]
    want = {(row, e) for _, row, e in sorted(every)[: budget.remove_total]}
    keep_LE = keep_highest(score_LE, budget)
    assert {(row, e) for row in range(3) for e in range(80) if not keep_LE[row, e]} == want


def test_equal_scores_whose_means_round_differently():
    """0.1 three times has a higher mean than four times, in floats; the first chunk goes first."""
    model = facts([11], top_k=1)
    budget = budget_of(model, ratio=0.4, allocation="global", multiple_of=4)
    keep_LE = keep_highest(np.full((1, 11), 0.1), budget)
    assert (0.1 + 0.1 + 0.1) / 3 > 0.1
    assert keep_LE.tolist() == [[False] * 3 + [True] * 8]


def test_a_smaller_chunk_takes_what_a_whole_one_cannot():
    """Five may leave: four of layer 0, then its next four do not fit, but one of layer 1 does."""
    model = facts([12, 9], top_k=1)
    budget = budget_of(model, ratio=0.25, allocation="global", multiple_of=4)
    assert budget.remove_total == 5
    score_LE = np.array([[0.1] * 12, [0.2] * 12])
    keep_LE = keep_highest(score_LE, budget)
    assert keep_LE.sum(axis=1).tolist() == [8, 8]


def test_scores_beyond_a_narrow_layer_are_not_read():
    model = facts([3, 6], top_k=1)
    budget = budget_of(model, ratio=0.4, allocation="global")
    score_LE = np.random.default_rng(0).random((2, 6))
    other_LE = score_LE.copy()
    other_LE[0, 3:] = np.nan
    assert np.array_equal(keep_highest(score_LE, budget), keep_highest(other_LE, budget))


def test_domain_loss_and_jaccard():
    mass_DLE = np.array([[[1.0, 3.0], [2.0, 2.0]], [[0.0, 4.0], [4.0, 0.0]]])
    keep_LE = np.array([[False, True], [True, False]])
    assert domain_loss(mass_DLE, keep_LE).tolist() == [3 / 8, 0.0]
    assert jaccard(~keep_LE, ~keep_LE) == 1.0
    assert jaccard(~keep_LE, keep_LE) == 0.0
    assert jaccard(np.array([[True, True, False]]), np.array([[False, True, True]])) == 1 / 3


def test_leaving_orders_by_hand():
    model = facts([4, 6], top_k=2)
    budget = replace(budget_of(model, ratio=0.5), protected=((1,), ()))
    score_LE = np.array([[3.0, 0.0, 1.0, 1.0, 9.0, 9.0], [5.0, 4.0, 3.0, 2.0, 1.0, 1.0]])
    orders = leaving_orders(score_LE, budget)
    assert [list(order) for order in orders] == [[2, 3, 0, 1], [4, 5, 3, 2, 1, 0]]
    keep_LE = keep_counts(orders, (1, 4))
    assert keep_LE.tolist() == [
        [True, True, False, True, False, False],
        [True, True, False, False, False, False],
    ]


def test_leaving_orders_take_the_lowest_of_every_group_together():
    model = facts([8], top_k=2, groups=2, top_groups=1)
    budget = budget_of(model, keep=6)
    score_LE = np.array([[5.0, 6.0, 7.0, 8.0, 4.0, 3.0, 2.0, 1.0]])
    (order,) = leaving_orders(score_LE, budget)
    assert list(order) == [0, 7, 1, 6, 2, 5, 3, 4]


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_equal_counts_in_leaving_order_are_the_uniform_choice(data):
    groups = data.draw(st.sampled_from([1, 2]))
    experts = [groups * data.draw(st.integers(5, 9)) for _ in range(data.draw(st.integers(1, 4)))]
    budget = budget_of(facts(experts, top_k=2, groups=groups, top_groups=groups), ratio=0.45)
    values = st.lists(st.integers(0, 3), min_size=max(experts), max_size=max(experts))
    score_LE = np.array([data.draw(values) for _ in experts], dtype=np.float64)
    keep_LE = keep_counts(leaving_orders(score_LE, budget), budget.max_remove)
    assert np.array_equal(keep_LE, keep_highest(score_LE, budget))

"""Budgets: exact counts, floors, units, and refusals that name a way out which works."""

import math
import re
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from synthetic import facts

from moeprune.core.budget import Budget, limits
from moeprune.errors import PlanError, UsageError


def of(model, *, ratio=None, keep=None, allocation="uniform", multiple_of=1):
    return Budget.of(model, ratio=ratio, keep=keep, allocation=allocation, multiple_of=multiple_of)


@pytest.mark.parametrize(
    ("experts", "ratio", "removed"),
    [
        (100, 0.29, 29),  # 0.29 * 100 is 28.999999999999996 in floats
        (100, 0.57, 57),
        (128, 0.25, 32),
        (60, 0.25, 15),
        (7, 0.5, 3),
        (3, 0.5, 1),
        (10, 0.1, 1),
        (1000, 1e-3, 1),
    ],
)
@pytest.mark.parametrize("allocation", ["uniform", "global"])
def test_ratio_is_the_decimal_as_written(experts, ratio, removed, allocation):
    assert of(facts([experts], top_k=1), ratio=ratio, allocation=allocation).remove_total == removed


@pytest.mark.parametrize(
    ("model", "want"),
    [
        (facts([64], top_k=8), (8, 1)),
        (facts([64], top_k=1), (2, 1)),  # some routers take the best two whatever k is
        (facts([256], top_k=8, groups=8, top_groups=4), (16, 8)),  # DeepSeek-V3: 2 of each group
        (facts([16], top_k=1, groups=4, top_groups=2), (8, 4)),  # a group's score sums two
        (facts([16], top_k=2, groups=2, top_groups=2), (4, 2)),
        (facts([16], top_k=8, groups=4, top_groups=2), (16, 4)),  # 8 experts out of 2 groups
        (facts([24], top_k=7, groups=4, top_groups=2), (16, 4)),  # ceil(7/2) = 4 of each group
    ],
)
def test_limits(model, want):
    limit = limits(model)
    assert (limit.min_keep, limit.unit) == want


def test_limits_with_multiple():
    assert limits(facts([64], top_k=6), multiple_of=4).min_keep == 8
    grouped = limits(facts([64], top_k=6, groups=8, top_groups=4), multiple_of=6)
    assert (grouped.min_keep, grouped.unit) == (24, 24)


@given(
    experts=st.integers(2, 70),
    layers=st.integers(1, 5),
    top_k=st.integers(1, 8),
    percent=st.integers(1, 99),
    multiple=st.sampled_from([1, 2, 3, 4, 8]),
)
def test_uniform_removes_the_floor_and_keeps_whole_units(experts, layers, top_k, percent, multiple):
    model = facts([experts] * layers, top_k=min(top_k, experts))
    try:
        budget = of(model, ratio=percent / 100, multiple_of=multiple)
    except UsageError:
        return
    kept = experts - experts * percent // 100
    kept = math.ceil(kept / multiple) * multiple
    assert budget.max_remove == (experts - kept,) * layers
    assert budget.remove_total == layers * (experts - kept)


@given(
    experts=st.lists(st.integers(4, 40), min_size=1, max_size=5),
    percent=st.integers(1, 99),
)
def test_global_is_equation_2(experts, percent):
    model = facts(experts, top_k=2)
    try:
        budget = of(model, ratio=percent / 100, allocation="global")
    except UsageError:
        return
    assert budget.remove_total == math.floor(Fraction(percent, 100) * sum(experts))
    assert budget.max_remove == tuple(count - 2 for count in experts)


@example([8, 16], 4, 2, 6, 0.125, "uniform")  # the layer of 8 cannot lose any
@given(
    experts=st.lists(st.sampled_from([4, 8, 12, 16, 24, 64]), min_size=1, max_size=3),
    top_k=st.sampled_from([1, 2, 4]),
    groups=st.sampled_from([1, 2, 4]),
    multiple=st.sampled_from([1, 2, 6]),
    ratio=st.floats(0.001, 0.999),
    allocation=st.sampled_from(["uniform", "global"]),
)
def test_a_suggested_ratio_works_and_is_the_extreme(
    experts, top_k, groups, multiple, ratio, allocation
):
    model = facts(experts, top_k=top_k, groups=groups, top_groups=max(1, groups // 2))

    def removed(share):
        budget = of(model, ratio=share, allocation=allocation, multiple_of=multiple)
        return budget.remove_total

    try:
        removed(ratio)
    except UsageError as error:
        keep = re.search(r"--keep ([0-9]+) or more", str(error))
        if keep is not None and int(keep[1]) < min(experts):
            of(model, keep=int(keep[1]), allocation=allocation, multiple_of=multiple)
        if "--allocation global" in str(error):
            assert allocation == "uniform"
        hint = re.search(r"Use --ratio ([0-9.]+) or (more|less)", str(error))
        if hint is None:
            return
        best = removed(float(hint[1]))
        # No ratio on a fine grid does better in the asked direction.
        for step in range(1, 200):
            try:
                other = removed(step / 200)
            except UsageError:
                continue
            assert other >= best if hint[2] == "more" else other <= best


@pytest.mark.parametrize(
    ("model", "asked", "says"),
    [
        (facts([8]), {}, "give one of --ratio, --keep"),
        (facts([8]), {"ratio": 0.5, "keep": 4}, "--ratio and --keep are both given"),
        (facts([8]), {"ratio": 0.0}, "--ratio 0.0"),
        (facts([8]), {"ratio": 1.0}, "between 0 and 1"),
        (facts([8]), {"ratio": -0.1}, "--ratio -0.1"),
        (facts([8]), {"ratio": float("nan")}, "--ratio nan"),
        (facts([64]), {"ratio": 0.01}, "Use --ratio 0.02 or more"),
        (facts([64], top_k=8), {"ratio": 0.9}, "Use --ratio 0.89 or less, or --keep 8 or more"),
        (facts([8]), {"keep": 0}, "--keep 0"),
        (facts([8]), {"keep": 1}, "Use --keep 2 or more"),
        (facts([8, 8]), {"keep": 8}, "removes no expert"),
        (facts([8, 8]), {"keep": 9}, "removes no expert"),
        (facts([8, 8]), {"keep": 8, "allocation": "global"}, "removes no expert"),
        (facts([10, 6]), {"keep": 7}, "layer 1 has only 6 experts. Use --keep 6 or fewer"),
        (facts([12]), {"keep": 7, "multiple_of": 4}, "Use --keep 4 or 8"),
        (facts([8], top_k=8), {"ratio": 0.5}, "nothing can leave"),
        (facts([1], top_k=1), {"ratio": 0.5}, "nothing can leave"),
        (facts([8]), {"ratio": 0.5, "multiple_of": 8}, "Use a smaller --multiple-of"),
        (facts([8]), {"ratio": 0.5, "multiple_of": 0}, "--multiple-of 0"),
        (facts([8]), {"ratio": 0.5, "allocation": "unifrom"}, "Did you mean 'uniform'"),
        (facts([16], groups=4, top_groups=2), {"keep": 10}, "router has 4 groups"),
    ],
)
def test_refusals_name_the_way_out(model, asked, says):
    with pytest.raises(UsageError) as error:
        of(model, **asked)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_groups_that_do_not_divide():
    with pytest.raises(PlanError, match="layer 7 has 10 experts"):
        limits(facts([10], groups=4, top_groups=2, layer_ids=[7]))


def test_keep_on_average():
    budget = of(facts([10, 6]), keep=7, allocation="global")
    assert budget.remove_total == 2
    assert of(facts([10, 6]), keep=6).max_remove == (4, 0)

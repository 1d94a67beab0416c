"""The largest model that fits: it fits, and the next larger one of its kind would not."""

import re

import numpy as np
import pytest
from constrained import check_choice, constraints, models
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import facts

from moeprune.core.budget import Budget
from moeprune.core.choice import keep_highest, real_LE
from moeprune.core.constraints import Constraints
from moeprune.core.fitting import budget_for, bytes_after, fitting_budget
from moeprune.errors import UsageError


def bytes_of(model, keep_LE):
    """Counted expert by expert."""
    total = model.total_bytes
    for row, count in enumerate(model.num_experts):
        for expert in range(count):
            if not keep_LE[row, expert]:
                total -= model.expert_bytes[row]
    return total


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_fits_and_is_maximal(data):
    model = data.draw(models())
    multiple_of = data.draw(st.sampled_from([1, 1, 2, 3]))
    allocation = data.draw(st.sampled_from(["uniform", "global"]))
    room = sum(n * size for n, size in zip(model.num_experts, model.expert_bytes, strict=True))
    max_bytes = model.total_bytes - data.draw(st.integers(1, room))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    score_LE = rng.random((model.num_layers, model.width))

    def choose(budget):
        return keep_highest(score_LE, budget)

    try:
        asked = data.draw(constraints(model))
        budget = fitting_budget(
            model,
            max_bytes,
            allocation=allocation,
            multiple_of=multiple_of,
            constraints=asked,
            choose=choose,
        )
    except UsageError as refusal:
        assert "\n" not in str(refusal)
        return
    keep_LE = choose(budget)
    check_choice(keep_LE, model, asked, budget, multiple_of=multiple_of)
    mine = bytes_of(model, keep_LE)
    assert bytes_after(model, keep_LE) == mine <= max_bytes

    def of(**amount):
        return Budget.of(
            model,
            **{"ratio": None, "keep": None, **amount},
            allocation=allocation,
            multiple_of=multiple_of,
            constraints=asked,
        )

    # No ratio gives a model between this one and the limit.
    for step in range(1, 200):
        try:
            other = bytes_of(model, choose(of(ratio=step / 200)))
        except UsageError:
            continue
        nested = allocation == "uniform" or all(n % budget.unit == 0 for n in model.num_experts)
        if nested:
            assert other <= mine or other > max_bytes
    # One chunk less in the whole model does not fit.
    free = [layer not in asked.layer_keep for layer in model.layer_ids]
    own = sum(n for n, is_free in zip(budget.max_remove, free, strict=True) if not is_free)
    whole = all(n % budget.unit == 0 for n, yes in zip(model.num_experts, free, strict=True) if yes)
    less = budget.remove_total - (budget.unit if whole else 1)
    if allocation == "global" and less > own:
        smaller = Budget(
            allocation="global",
            num_experts=budget.num_experts,
            num_groups=budget.num_groups,
            unit=budget.unit,
            max_remove=budget.max_remove,
            min_remove=budget.min_remove,
            protected=budget.protected,
            remove_total=less,
        )
        assert bytes_of(model, choose(smaller)) > max_bytes


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_smallest_size_that_a_refusal_names_is_met_and_the_least(data):
    model = data.draw(models())
    allocation = data.draw(st.sampled_from(["uniform", "global"]))
    rng = np.random.default_rng(0)
    score_LE = rng.random((model.num_layers, model.width))

    def fit(max_bytes):
        budget = fitting_budget(
            model,
            max_bytes,
            allocation=allocation,
            multiple_of=1,
            constraints=Constraints(),
            choose=lambda budget: keep_highest(score_LE, budget),
        )
        return bytes_of(model, keep_highest(score_LE, budget))

    try:
        fit(1)
    except UsageError as refusal:
        named = re.search(r"Use --max-bytes ([0-9]+) or more", str(refusal))
        if named is None:
            assert "nothing can leave" in str(refusal)
            return
        smallest = int(named[1])
        if smallest == model.total_bytes:
            return  # the ratio that any narrow layer allows removes nothing
        assert fit(smallest) == smallest
        with pytest.raises(UsageError):
            fit(smallest - 1)


def test_the_choice_is_not_asked_where_sizes_are_equal():
    model = facts([8, 12])
    budget = fitting_budget(
        model,
        model.total_bytes - 501,
        allocation="global",
        multiple_of=1,
        constraints=Constraints(),
        choose=lambda budget: pytest.fail("no choice can change the size"),
    )
    assert budget.remove_total == 6


def test_experts_of_two_sizes_need_the_choice():
    """The cheap experts are small: ten of them must go where three large ones would do."""
    from dataclasses import replace

    model = replace(facts([12, 12]), expert_bytes=(10, 40), total_bytes=1000)
    score_LE = np.concatenate([np.arange(12.0)[None], 100 + np.arange(12.0)[None]])
    budget = fitting_budget(
        model,
        900,
        allocation="global",
        multiple_of=1,
        constraints=Constraints(),
        choose=lambda budget: keep_highest(score_LE, budget),
    )
    keep_LE = keep_highest(score_LE, budget)
    assert (real_LE(model.num_experts) & ~keep_LE).sum(axis=1).tolist() == [10, 0]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"max_bytes": 20_000}, "has 11600 bytes, so it fits already"),
        ({"max_bytes": 11_600}, "fits already"),
        ({"max_bytes": 10_399}, "has 10400 bytes. Use --max-bytes 10400 or more"),
        ({"max_bytes": 11_000, "ratio": 0.5}, "give one of the three"),
        ({"max_bytes": 11_000, "keep": 4}, "give one of the three"),
        ({}, "no size is asked for: give one of --ratio, --keep and --max-bytes"),
    ],
)
@pytest.mark.parametrize("allocation", ["uniform", "global"])
def test_refusals(asked, says, allocation):
    model = facts([8, 8])
    with pytest.raises(UsageError) as refusal:
        budget_for(
            model,
            **{"ratio": None, "keep": None, "max_bytes": None, **asked},
            allocation=allocation,
            multiple_of=1,
            constraints=Constraints(),
            choose=lambda budget: keep_highest(np.zeros((2, 4)), budget),
        )
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_count_of_its_own_may_be_enough():
    model = facts([8, 8])
    budget = fitting_budget(
        model,
        model.total_bytes - 400,
        allocation="uniform",
        multiple_of=1,
        constraints=Constraints.of(model, layer_keep={1: 4}),
        choose=lambda budget: pytest.fail("not needed"),
    )
    assert budget.max_remove == (0, 4)


def test_no_ratio_fits_where_one_layer_can_lose_none():
    model = facts([4, 4], top_k=2)
    whole = Constraints.of(model, protected=[((0, 1, 2, 3), ())])
    with pytest.raises(UsageError, match="no ratio fits every layer"):
        fitting_budget(
            model,
            model.total_bytes - 250,
            allocation="uniform",
            multiple_of=1,
            constraints=whole,
            choose=lambda budget: keep_highest(np.zeros((2, 4)), budget),
        )

"""Every allocator in the folder keeps what a person wants kept, on random models."""

import numpy as np
import pytest
from constrained import check_choice, constraints, models
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune import allocators, plugins
from moeprune.core.budget import Budget
from moeprune.core.choice import real_LE
from moeprune.core.pooling import row_norm
from moeprune.errors import UsageError


@pytest.mark.parametrize("name", plugins.names(allocators))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_budgets_floors_groups_and_constraints_hold(name, data):
    model = data.draw(models())
    multiple_of = data.draw(st.sampled_from([1, 1, 2, 3]))
    allocation = data.draw(st.sampled_from(["uniform", "global"]))
    percent = data.draw(st.integers(5, 80))
    try:
        asked = data.draw(constraints(model))
        budget = Budget.of(
            model,
            ratio=percent / 100,
            keep=None,
            allocation=allocation,
            multiple_of=multiple_of,
            constraints=asked,
        )
    except UsageError:
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shape = (data.draw(st.integers(1, 3)), model.num_layers, model.width)
    worth_DLE = row_norm(rng.random(shape) ** 3 * real_LE(model.num_experts))
    score_LE = row_norm(worth_DLE.mean(axis=0))
    module = plugins.load(allocators, name)
    keep_LE = module.allocate(score_LE, worth_DLE=worth_DLE, budget=budget).keep_LE
    check_choice(keep_LE, model, asked, budget, multiple_of=multiple_of)

"""What every allocator in the folder must do, whatever it optimises."""

import numpy as np
import pytest
from synthetic import facts

from moeprune import allocators, plugins
from moeprune.core.budget import Budget

MODELS = {
    "plain": (facts([8, 8, 8]), {"ratio": 0.4}),
    "one layer": (facts([16], top_k=4), {"ratio": 0.5}),
    "ragged": (facts([5, 12, 3]), {"ratio": 0.34}),
    "groups": (facts([16, 16], top_k=4, groups=4, top_groups=2), {"ratio": 0.3}),
    "multiple": (facts([12, 12]), {"ratio": 0.4, "multiple_of": 4}),
    "to the floor": (facts([8, 8], top_k=3), {"keep": 3}),
}


@pytest.mark.parametrize("name", plugins.names(allocators))
@pytest.mark.parametrize("allocation", ["uniform", "global"])
@pytest.mark.parametrize("case", MODELS)
def test_contract(name, allocation, case):
    model, asked = MODELS[case]
    budget = Budget.of(model, **{"ratio": None, "keep": None, "allocation": allocation, **asked})
    rng = np.random.default_rng(7)
    shape = (3, model.num_layers, model.width)
    mass_DLE = rng.random(shape) * (np.arange(model.width) < np.array(model.num_experts)[:, None])
    mass_DLE /= mass_DLE.sum(axis=2, keepdims=True)
    score_LE = mass_DLE.mean(axis=0)
    before = score_LE.copy(), mass_DLE.copy()

    module = plugins.load(allocators, name)
    keep_LE = module.allocate(score_LE, worth_DLE=mass_DLE, budget=budget).keep_LE
    again_LE = module.allocate(score_LE, worth_DLE=mass_DLE, budget=budget).keep_LE

    assert np.array_equal(keep_LE, again_LE)
    assert np.array_equal(score_LE, before[0])
    assert np.array_equal(mass_DLE, before[1])
    assert keep_LE.dtype == np.bool_
    assert sum(model.num_experts) - keep_LE.sum() == budget.remove_total
    for row, count in enumerate(model.num_experts):
        kept_E = keep_LE[row, :count]
        assert not keep_LE[row, count:].any()
        assert kept_E.sum() >= model.top_k
        assert count - kept_E.sum() <= budget.max_remove[row]
        assert len(set(kept_E.reshape(model.num_groups, -1).sum(axis=1))) == 1
        if allocation == "uniform":
            assert count - kept_E.sum() == budget.max_remove[row]

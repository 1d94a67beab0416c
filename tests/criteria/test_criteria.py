"""What every criterion in the folder must do; test_formulas.py has the formulas."""

import numpy as np
import pytest
import synthetic

from moeprune import criteria, plugins
from moeprune.core.pooling import pool
from moeprune.core.stats import ALL_FIELDS
from moeprune.errors import UsageError

MEASURING = [name for name in plugins.names(criteria) if name != "random"]


@pytest.fixture(scope="module")
def stats():
    return synthetic.stats(synthetic.facts([8, 5]), tokens_F=(3, 0, 2, 1), seed=5, loss=True)


def score(name, stats, **options):
    module = plugins.load(criteria, name)
    return module.score(pool(stats, module.NEEDS), **options)


def test_the_folder():
    assert set(plugins.names(criteria)) >= {
        *("reap", "reap-sum", "reap-prob", "mass", "frequency", "gate"),
        *("ean", "ean-sum", "man", "msan", "random"),
        *("fisher", "fisher-cf", "abs-cf"),
    }


@pytest.mark.parametrize("name", plugins.names(criteria))
def test_contract(name, stats):
    module = plugins.load(criteria, name)
    assert set(module.NEEDS) <= set(ALL_FIELDS)
    scores_LE = score(name, stats)
    assert scores_LE.shape == (2, 8)
    assert scores_LE.dtype == np.float64
    assert np.isfinite(scores_LE).all()
    assert (scores_LE >= 0).all()


@pytest.mark.parametrize("name", MEASURING)
def test_an_unseen_expert_scores_0(name):
    stats = synthetic.stats(synthetic.facts([8, 5]), domains=["a", "b"], loss=True)
    for domain in stats.domains:
        for field, array in domain.arrays.items():
            if ALL_FIELDS[field][0] == "LE":
                array[:, 1, 3] = 0
    scores_LE = score(name, stats)
    assert scores_LE[1, 3] == 0
    assert scores_LE[0].any()


@pytest.mark.parametrize("name", MEASURING)
def test_permuting_experts_permutes_scores(name, stats):
    module = plugins.load(criteria, name)
    sums = pool(stats, module.NEEDS)
    order = np.random.default_rng(1).permutation(8)
    permuted = {field: array[:, order] for field, array in sums.items()}
    np.testing.assert_allclose(
        module.score(permuted), module.score(sums)[:, order], rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("name", plugins.names(criteria))
def test_the_sums_are_not_changed(name, stats):
    module = plugins.load(criteria, name)
    sums = pool(stats, module.NEEDS)
    before = {field: array.copy() for field, array in sums.items()}
    module.score(sums)[:] = -1
    assert all(np.array_equal(sums[field], before[field]) for field in sums)


def test_random_is_frozen(stats):
    """The stream is part of what a plan means: it must never change."""
    scores_LE = score("random", stats, seed=0)
    assert scores_LE[0, :3].tolist() == [0.5488135039273248, 0.7151893663724195, 0.6027633760716439]
    assert not np.array_equal(scores_LE, score("random", stats, seed=1))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_random_refuses_a_seed_out_of_range(seed, stats):
    with pytest.raises(UsageError, match=f"--seed {seed}"):
        score("random", stats, seed=seed)

"""Pooling over domains, against sums written out by hand; the diagnosis read off them."""

from dataclasses import replace

import numpy as np
import pytest
import synthetic

from moeprune.core.diagnosis import routing, shard_warnings
from moeprune.core.pooling import domain_mass_DLE, pool, weights_D
from moeprune.core.stats import DomainStats
from moeprune.errors import StatsError, UsageError


@pytest.fixture(scope="module")
def stats():
    """Two domains of very different length, one narrow layer."""
    model = synthetic.facts([6, 4])
    rng = np.random.default_rng(3)
    one, other = (
        DomainStats(
            name=name,
            source="text",
            corpus_sha256="c0",
            documents=4,
            arrays=synthetic.domain_arrays(model, tokens, rng),
        )
        for name, tokens in (("long", (20, 20, 20, 20)), ("short", (2, 1, 0, 3)))
    )
    made = synthetic.stats(model, domains=["x"], tokens_F=(1, 0, 0, 0))
    return replace(made, domains=(one, other))


@pytest.mark.parametrize(
    ("given", "weights"),
    [
        (None, (1.0, 1.0)),
        ({"short": 3.0}, (1.0, 3.0)),
        ({"long": 0}, (0.0, 1.0)),
        ("tokens", (80.0, 6.0)),
    ],
)
@pytest.mark.parametrize("field", ["prob_sum", "count", "entropy_sum"])
def test_pool_is_the_weighted_sum_per_token(stats, given, weights, field):
    pooled = pool(stats, [field], domain_weights=given)[field]
    want = np.zeros_like(pooled)
    for domain, weight, tokens in zip(stats.domains, weights, (80, 6), strict=True):
        for fold in range(4):
            want += weight / tokens * domain.arrays[field][fold] / sum(weights)
    np.testing.assert_allclose(pooled, want, rtol=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e308, 1e-300, 5e-324])
def test_only_the_ratio_of_weights_counts(stats, scale):
    names = [domain.name for domain in stats.domains]
    equal = weights_D(stats, dict.fromkeys(names, scale))
    np.testing.assert_allclose(equal, weights_D(stats, None), rtol=1e-12)


def test_pool_by_tokens_is_the_plain_sum(stats):
    pooled = pool(stats, ["prob_sum"], domain_weights="tokens")["prob_sum"]
    plain = sum(domain.arrays["prob_sum"].sum(axis=0) for domain in stats.domains)
    np.testing.assert_allclose(pooled * 86, plain, rtol=1e-12)


def test_a_maximum_is_pooled_by_maximum(stats):
    long, short = (domain.arrays["norm_max"].max(axis=0) for domain in stats.domains)
    assert np.array_equal(pool(stats, ["norm_max"])["norm_max"], np.maximum(long, short))
    only = pool(stats, ["norm_max"], domain_weights={"long": 0})["norm_max"]
    assert np.array_equal(only, short)


def test_pool_of_folds(stats):
    pooled = pool(stats, ["count"], folds=(0, 3))["count"]
    long, short = (domain.arrays["count"][[0, 3]].sum(axis=0) for domain in stats.domains)
    np.testing.assert_allclose(pooled, (long / 40 + short / 5) / 2, rtol=1e-12)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"maths": 2.0}, "no domain 'maths'; they hold long, short"),
        ({"long": -1.0}, "long=-1.0"),
        ({"long": float("nan")}, "long=nan"),
        ({"long": 0, "short": 0}, "every --domain-weight is 0"),
        ("token", "neither 'tokens' nor NAME=WEIGHT"),
    ],
)
def test_bad_weights(stats, given, says):
    with pytest.raises(UsageError) as error:
        weights_D(stats, given)
    assert says in str(error.value)


def test_a_domain_without_tokens_is_named(stats):
    with pytest.raises(StatsError, match="'short' has no token"):
        domain_mass_DLE(stats, folds=(2,))


def test_domain_mass_rows_sum_to_one(stats):
    mass_DLE = domain_mass_DLE(stats)
    assert mass_DLE.shape == (2, 2, 6)
    np.testing.assert_allclose(mass_DLE.sum(axis=2), 1, rtol=1e-12)
    assert not mass_DLE[:, 1, 4:].any()


def test_entropy_ratio_is_over_log2_of_the_layers_own_experts(stats):
    found = routing(stats)
    for row, experts in enumerate((6, 4)):
        per_domain = [
            domain.arrays["entropy_sum"][:, row].sum() / tokens
            for domain, tokens in zip(stats.domains, (80, 6), strict=True)
        ]
        want = np.mean(per_domain) / np.log2(experts)
        assert found["entropy_ratio_by_layer"][row] == pytest.approx(want, abs=1e-6)
    assert found["entropy_ratio"] == pytest.approx(
        np.mean(found["entropy_ratio_by_layer"]), abs=1e-6
    )
    assert found["regime"] == "standard"


@pytest.mark.parametrize(("ratio", "regime"), [(0.851, "over-dispersed"), (0.85, "standard")])
def test_regime(ratio, regime):
    stats = synthetic.stats(synthetic.facts([8, 4]), domains=["a"])
    tokens_FL = stats.domains[0].arrays["tokens"]
    stats.domains[0].arrays["entropy_sum"][:] = tokens_FL * np.array([3.0, 2.0]) * ratio
    found = routing(stats)
    assert found["regime"] == regime
    assert found["entropy_ratio_by_layer"] == pytest.approx([ratio, ratio])


def test_a_layer_of_one_expert_has_no_entropy_ratio():
    stats = synthetic.stats(synthetic.facts([1, 4], top_k=1), domains=["a"])
    found = routing(stats)
    assert found["entropy_ratio_by_layer"][0] is None
    assert found["entropy_ratio"] == pytest.approx(found["entropy_ratio_by_layer"][1], abs=1e-6)


@pytest.mark.parametrize(
    ("shards", "whole"),
    [
        (((0, 1),), True),
        (((0, 2), (1, 4), (3, 4)), True),
        (((0, 2),), False),
        (((0, 3), (2, 3)), False),
    ],
)
def test_missing_shards_are_told(shards, whole):
    stats = synthetic.stats(domains=["a", "b"])
    stats = replace(stats, domains=(stats.domains[0], replace(stats.domains[1], shards=shards)))
    lines = shard_warnings(stats)
    assert (lines == []) is whole
    for line in lines:
        assert line.startswith("of domain b only shard ") and "moeprune merge" in line
        assert all(f"{index}/{of}" in line for index, of in shards)

"""Experts that no token reached: counted, named, and warned of."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import synthetic

from moeprune.core.unseen import unseen, unseen_warnings
from moeprune.errors import StatsError, UsageError


def test_unseen_experts_are_told():
    stats = synthetic.stats(synthetic.facts([20, 20], layer_ids=[3, 9]), tokens_F=(60, 60, 60, 60))
    for domain in stats.domains:
        domain.arrays["count"][:] = 1
    assert unseen_warnings(stats) == []
    for domain in stats.domains:
        domain.arrays["count"][:, 0, :1] = 0  # 5 %: not more than that
    assert unseen_warnings(stats) == []
    for domain in stats.domains:
        domain.arrays["count"][:, 1, :2] = 0
    (line,) = unseen_warnings(stats)
    assert line.startswith("3 of 40 experts saw no token (more than 5% of layer 9)")


def reached(stats, wanted):
    """Stats whose domain d was routed to expert e of row r in one fold for (d, r, e) wanted."""
    for domain in stats.domains:
        domain.arrays["count"][:] = 0
    for fold, (d, row, expert) in zip(itertools.cycle(range(4)), sorted(wanted), strict=False):
        stats.domains[d].arrays["count"][fold, row, expert] = 1
    return stats


@pytest.mark.parametrize("weights", [None, "tokens", {"a": 0}, {"b": 0.0, "a": 3}])
@pytest.mark.parametrize("seed", range(4))
def test_every_expert_is_counted_by_itself(weights, seed):
    counts = (6, 3)
    stats = synthetic.stats(synthetic.facts(counts, layer_ids=[4, 7]), domains=["a", "b"])
    places = [(d, row, e) for d in range(2) for row in range(2) for e in range(counts[row])]
    rng = np.random.default_rng(seed)
    wanted = {place for place in places if rng.random() < 0.6}
    found = unseen(reached(stats, wanted), domain_weights=weights)

    zero = {name for name, weight in weights.items() if not weight} if type(weights) is dict else ()
    use = [d for d, name in enumerate("ab") if name not in zero]
    layers = {}
    for row, layer in enumerate(("4", "7")):
        ids = [e for e in range(counts[row]) if not any((d, row, e) in wanted for d in use)]
        if ids:
            layers[layer] = ids
    alone = {name: sum(p not in wanted for p in places if p[0] == d) for d, name in enumerate("ab")}
    assert found == {
        "experts": sum(map(len, layers.values())),
        "layers": layers,
        "domains": {name: count for name, count in alone.items() if count},
    }
    assert bool(unseen_warnings(stats, domain_weights=weights)) == bool(layers)


def test_nothing_to_tell():
    stats = synthetic.stats(synthetic.facts([4, 3]))
    for domain in stats.domains:
        domain.arrays["count"][:, :, :3] = 1  # the narrow layer has no expert 3
        domain.arrays["count"][:, 0, 3] = 1
    assert unseen(stats) == {}
    assert unseen_warnings(stats) == []


def test_one_domain_alone():
    stats = synthetic.stats(synthetic.facts([20]), domains=["a", "b"])
    for domain in stats.domains:
        domain.arrays["count"][:] = 1
    stats.domains[1].arrays["count"][:, 0, :9] = 0
    assert unseen(stats) == {"experts": 0, "layers": {}, "domains": {"b": 9}}
    assert unseen_warnings(stats) == []
    (line,) = unseen_warnings(stats, domain_weights={"a": 0})
    assert line.startswith("9 of 20 experts saw no token of a domain that weighs more than 0 (")
    assert "calibrate on more text" in line


def test_expert_sets_are_told_apart():
    model = replace(synthetic.facts([4, 4], layer_ids=[2, 2]), sets=("", "attention"))
    stats = synthetic.stats(model, domains=["a"])
    stats.domains[0].arrays["count"][:] = 1
    stats.domains[0].arrays["count"][:, :, 1] = 0
    assert unseen(stats)["layers"] == {"2": [1], "2 (attention)": [1]}


def test_what_pooling_refuses_is_refused():
    stats = synthetic.stats(domains=["a"])
    with pytest.raises(UsageError, match="no domain 'b'"):
        unseen(stats, domain_weights={"b": 0})
    stats.domains[0].arrays["tokens"][:] = 0
    with pytest.raises(StatsError, match="has no token"):
        unseen(stats)

"""Super-experts by REAP's rule, counted in plain loops, and its layers by their place."""

from dataclasses import replace

import numpy as np
import pytest
import synthetic

from moeprune.core.super_experts import super_experts


def with_norms(model, norms):
    """Stats of one domain whose largest norms are ``norms[(row, expert)]``, 1 elsewhere."""
    stats = synthetic.stats(model, domains=["a", "b"])
    for domain in stats.domains:
        array = domain.arrays["norm_max"]
        for row, count in enumerate(model.num_experts):
            array[:, row, :count] = 1.0
    for (row, expert), value in norms.items():
        stats.domains[1].arrays["norm_max"][2, row, expert] = value
    return stats


def by_loops(stats):
    """The rule as REAP states it, layer by layer in the order of the model."""
    model = stats.model
    largest = {}
    for row, count in enumerate(model.num_experts):
        for expert in range(count):
            largest[row, expert] = max(
                float(domain.arrays["norm_max"][fold, row, expert])
                for domain in stats.domains
                for fold in range(4)
            )
    ordered = sorted(largest.values())
    place = (len(ordered) - 1) * 0.995
    below, above = ordered[int(place)], ordered[min(int(place) + 1, len(ordered) - 1)]
    percentile = below + (above - below) * (place - int(place))
    threshold = max(percentile, max(ordered) / 10)
    early = int(model.num_layers * 0.75)
    return tuple(
        tuple(e for e in range(count) if largest[row, e] > threshold and row < early)
        for row, count in enumerate(model.num_experts)
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("experts", [(64, 64, 64, 64), (40, 64, 12), (300,), (128, 256, 8, 8, 8)])
def test_equals_the_rule_in_plain_loops(experts, seed):
    model = synthetic.facts(experts, layer_ids=[3 + row for row in range(len(experts))])
    rng = np.random.default_rng(seed)
    norms = {
        (row, e): float(np.float32(rng.lognormal(0, 2)))
        for row, count in enumerate(experts)
        for e in range(count)
    }
    stats = with_norms(model, norms)
    assert super_experts(stats) == by_loops(stats)


def test_layers_count_by_their_place_and_not_by_their_number():
    """Layers 30 to 33 of a model that begins with dense ones: the first three of four count."""
    model = synthetic.facts([100] * 4, layer_ids=[30, 31, 32, 33])
    stats = with_norms(model, {(0, 7): 50.0, (2, 9): 60.0, (3, 1): 70.0})
    # The 99.5th percentile of four hundred lies above the third largest.
    assert super_experts(stats) == ((), (), (9,), ())
    fewer = with_norms(model, {(0, 7): 50.0, (2, 9): 60.0})
    assert super_experts(fewer) == ((7,), (), (9,), ())


def test_a_tenth_of_the_largest_is_needed():
    model = synthetic.facts([200] * 4)
    stats = with_norms(model, {(0, 0): 9.9, (1, 1): 100.0})
    assert super_experts(stats) == ((), (1,), (), ())


def test_sets_of_a_layer_share_its_place():
    model = replace(synthetic.facts([100] * 4, layer_ids=[0, 0, 1, 1]), sets=("", "attention") * 2)
    stats = with_norms(model, {(1, 5): 90.0, (2, 5): 95.0})
    assert super_experts(stats) == ((), (5,), (), ())


def test_even_norms_have_none():
    assert super_experts(with_norms(synthetic.facts([8, 8]), {})) == ((), ())

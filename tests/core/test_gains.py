"""Gains of k₁ and k₂ from stats, against the raw tokens that the stats are sums of."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import facts, stats

from moeprune.core.facts import ModelFacts
from moeprune.core.gains import RankProfile, domain_profiles, layer_gains, rank_profile
from moeprune.core.stats import FOLDS, CalibrationStats
from moeprune.errors import StatsError, UsageError

Tokens = list[list[list[float]]]  # tokens of one domain: layer -> token -> probabilities


def tokens_of(model: ModelFacts, count: int, seed: int, *, heat: float) -> Tokens:
    draw = np.random.default_rng(seed)
    return [draw.dirichlet([heat] * experts, count).tolist() for experts in model.num_experts]


def measured(model: ModelFacts, domains: dict[str, Tokens]) -> CalibrationStats:
    """Stats of these tokens, token i in fold i mod 4; fields that no gain needs are made up."""
    made = stats(model, domains=list(domains))
    found = []
    for domain in made.domains:
        arrays = {name: array.copy() for name, array in domain.arrays.items()}
        for name in ("tokens", "rank_prob_sum"):
            arrays[name][...] = 0
        for row, layer in enumerate(domains[domain.name]):
            for number, prob_E in enumerate(layer):
                fold = number % FOLDS
                arrays["tokens"][fold, row] += 1
                ranked = sorted(prob_E, reverse=True)
                arrays["rank_prob_sum"][fold, row, : len(ranked)] += ranked
        found.append(replace(domain, arrays=arrays))
    return replace(made, domains=tuple(found))


def mass(prob_E: list[float], k: int) -> Fraction:
    """Of the likeliest k, exactly."""
    return sum(map(Fraction, sorted(prob_E, reverse=True)[:k]), Fraction(0))


MODEL = facts((8, 5), top_k=2)
DOMAINS = {
    "math": tokens_of(MODEL, 9, 1, heat=0.3),
    "code": tokens_of(MODEL, 30, 2, heat=2.0),
}


def test_a_profile_is_the_mean_by_rank() -> None:
    each = domain_profiles(measured(MODEL, DOMAINS))
    assert list(each) == ["math", "code"]
    for name, profile in each.items():
        for row, layer in enumerate(DOMAINS[name]):
            experts = MODEL.num_experts[row]
            for k in range(1, experts + 1):
                wanted = sum((mass(prob_E, k) for prob_E in layer), Fraction(0)) / len(layer)
                assert profile.mass_LE[row, k - 1] == pytest.approx(float(wanted), rel=1e-12)
            assert (profile.mean_LE[row, experts:] == 0).all()
            assert (np.diff(profile.mean_LE[row]) <= 0).all()


@pytest.mark.parametrize(("k1", "k2"), list(itertools.product((1, 2, 5), (1, 3, 5, 8, 99))))
def test_a_gain_is_the_ratio_of_means(k1: int, k2: int) -> None:
    made = measured(MODEL, DOMAINS)
    for name, profile in domain_profiles(made).items():
        for row, layer in enumerate(DOMAINS[name]):
            above = sum((mass(prob_E, k1) for prob_E in layer), Fraction(0))
            below = sum((mass(prob_E, k2) for prob_E in layer), Fraction(0))
            assert profile.gain_L(k1, k2)[row] == pytest.approx(float(above / below), rel=1e-12)
    # Every domain weighs the same, however many tokens it has.
    means = [
        [
            sum((mass(prob_E, k) for prob_E in layers[1]), Fraction(0)) / len(layers[1])
            for layers in DOMAINS.values()
        ]
        for k in (k1, k2)
    ]
    wanted = float(sum(means[0]) / sum(means[1]))
    assert layer_gains(made, k1, k2)[1] == pytest.approx(wanted, rel=1e-12)
    alone = layer_gains(made, k1, k2, {"math": 0})
    assert alone == pytest.approx(domain_profiles(made)["code"].gain_L(k1, k2), rel=1e-12)


@given(
    st.integers(2, 9),
    st.integers(0, 10**6),
    st.sampled_from([0.05, 0.3, 1.0, 5.0]),
    st.data(),
)
def test_the_mean_of_ratios_lies_within_the_slack(
    experts: int, seed: int, heat: float, data: st.DataObject
) -> None:
    k1, k2 = (data.draw(st.integers(1, experts)) for _ in range(2))
    layer = np.random.default_rng(seed).dirichlet([heat] * experts, 12)
    ranked = -np.sort(-layer, axis=1)
    profile = RankProfile(
        mean_LE=ranked.mean(axis=0)[None], num_experts=(experts,), names=("layer 0",)
    )
    above, below = ranked[:, :k1].sum(axis=1), ranked[:, :k2].sum(axis=1)
    off = abs((above / below).mean() - profile.gain_L(k1, k2)[0])
    assert off <= profile.slack_L(k1, k2)[0] + 1e-12
    # The identity that the bound comes from.
    covariance = (above / below * below).mean() - (above / below).mean() * below.mean()
    assert off == pytest.approx(abs(covariance) / below.mean(), abs=1e-12)


def test_exact_special_cases() -> None:
    profile = rank_profile(measured(MODEL, DOMAINS))
    for k in (1, 2, 5):
        assert profile.gain_L(k, k) == pytest.approx(1, rel=1e-15)
        assert profile.gain_L(k, 8) == pytest.approx(profile.top_mass_L(k), rel=1e-12)
        assert profile.slack_L(k, k) == pytest.approx(0)
    gains = np.stack([profile.gain_L(2, k2) for k2 in range(2, 9)])
    assert (np.diff(gains, axis=0) <= 0).all()  # a larger denominator never turns up the volume


def test_a_layer_that_runs_several_times_has_the_same_profile() -> None:
    made = measured(MODEL, DOMAINS)
    looped = []
    for domain in made.domains:
        arrays = {name: array.copy() for name, array in domain.arrays.items()}
        for name in ("tokens", "rank_prob_sum"):
            arrays[name][:, 1] *= 3
        looped.append(replace(domain, arrays=arrays))
    model = replace(made.model, passes=(1, 3))
    again = rank_profile(replace(made, model=model, domains=tuple(looped)))
    assert again.mean_LE == pytest.approx(rank_profile(made).mean_LE, rel=1e-14)


@pytest.mark.parametrize(
    ("k1", "k2", "words"),
    [
        (0, 2, "--k1 cannot be 0"),
        (2, 0, "--k2 cannot be 0"),
        (6, 8, "--k1 6: layer 1 has 5 experts"),
        (2.0, 4, "--k1 cannot be 2.0"),
    ],
)
def test_numbers_that_no_layer_has(k1: int, k2: int, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        layer_gains(measured(MODEL, DOMAINS), k1, k2)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_domain_without_tokens_is_named() -> None:
    with pytest.raises(StatsError, match="'math' has no token"):
        rank_profile(measured(MODEL, {**DOMAINS, "math": [[], []]}))

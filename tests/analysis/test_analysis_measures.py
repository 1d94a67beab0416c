"""Each measure against slow loops, scipy, enumeration, and properties."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import synthetic
from dispersed import drawn, stats_of
from hypothesis import given
from hypothesis import strategies as st

from moeprune.analysis import regime
from moeprune.analysis.divergence import divergence, jensen_shannon
from moeprune.analysis.entropy import entropy
from moeprune.analysis.kendall import tau_b
from moeprune.analysis.mass import cumulative_LE, expert_mass_LE, grid, rank_mass_LE
from moeprune.analysis.overlap import expected_overlap, overlap_L, top_mask
from moeprune.core.diagnosis import entropy_ratio_L

RAGGED = synthetic.facts([8, 3, 5], top_k=2)


def distributions(seed, shape, *, holes=0.0):
    rng = np.random.default_rng(seed)
    drawn_ = rng.gamma(1.0, size=shape) * (rng.random(shape) >= holes)
    drawn_[..., 0] += 1e-3
    return drawn_ / drawn_.sum(axis=-1, keepdims=True)


@given(seed=st.integers(0, 10**6), width=st.integers(1, 20), holes=st.sampled_from([0.0, 0.7]))
def test_jensen_shannon(seed, width, holes):
    one, other = distributions(seed, (2, 4, width), holes=holes)
    found = jensen_shannon(one, other)
    want = [
        scipy.spatial.distance.jensenshannon(p, q, base=2) ** 2
        for p, q in zip(one, other, strict=True)
    ]
    assert found == pytest.approx(np.nan_to_num(want), abs=1e-9)
    assert np.all((found >= 0) & (found <= 1))
    assert np.array_equal(found, jensen_shannon(other, one))
    assert np.all(jensen_shannon(one, one) == 0)


def test_jensen_shannon_of_nothing_shared_is_one_bit():
    assert jensen_shannon(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1
    assert jensen_shannon(np.zeros(3), np.zeros(3)) == 0


@given(values=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=30))
def test_tau_b_is_scipys(values):
    one, other = np.array(values, dtype=float).T
    want = scipy.stats.kendalltau(one, other).statistic
    assert tau_b(one, other) == pytest.approx(want, abs=1e-12, nan_ok=True)


def test_tau_b_of_one_value_is_unknown():
    assert math.isnan(tau_b(np.ones(1), np.ones(1)))


@pytest.mark.parametrize(("experts", "top"), [(6, 2), (6, 4), (5, 5), (7, 1), (3, 2)])
def test_expected_overlap_by_enumeration(experts, top):
    sets = [set(ids) for ids in itertools.combinations(range(experts), top)]
    every = [len(one & other) / len(one | other) for one in sets for other in sets]
    assert expected_overlap(experts, top) == pytest.approx(np.mean(every))


def test_expected_overlap_of_the_papers_sets():
    """Top 8 of 32: what 0.41 to 0.47 of its figure 6 is to be held against."""
    rng = np.random.default_rng(0)
    tops = [set(rng.permutation(32)[:8]) for _ in range(4000)]
    found = np.mean([len(one & two) / len(one | two) for one, two in itertools.pairwise(tops)])
    assert expected_overlap(32, 8) == pytest.approx(found, abs=0.005)
    assert expected_overlap(384, 96) == pytest.approx(96 / (2 * 384 - 96), rel=0.01)


def test_top_sets_against_sorting():
    mass_LE = np.array([[0.2, 0.5, 0.2, 0.1], [0.6, 0.4, 0.0, 0.0]])
    found = top_mask(mass_LE, [2, 1], [4, 2])
    assert found.tolist() == [[True, True, False, False], [True, False, False, False]]
    # Beyond a narrow layer's experts nothing is chosen, though their mass of 0 is no less.
    assert top_mask(np.zeros((2, 4)), [4, 2], [4, 2]).sum(axis=1).tolist() == [4, 2]
    assert overlap_L(found, top_mask(mass_LE, [1, 1], [4, 2])).tolist() == [0.5, 1.0]
    nothing = np.zeros((1, 3), dtype=bool)
    assert overlap_L(nothing, nothing).tolist() == [1.0]


def test_entropy_token_by_token():
    """From the entropies of single tokens: two domains that differ in length and in spread."""
    model = synthetic.facts([4, 4], top_k=1)
    rng = np.random.default_rng(0)
    bits = {"a": rng.uniform(0, 2, size=(5, 2)), "b": rng.uniform(1, 1.5, size=(40, 2))}
    made = synthetic.stats(model, domains=tuple(bits), tokens_F=(1, 1, 1, 1))
    for domain in made.domains:
        own = bits[domain.name]
        for name in domain.arrays:
            domain.arrays[name][:] = 0
        domain.arrays["tokens"][0] = len(own)
        domain.arrays["entropy_sum"][0] = own.sum(axis=0)
        domain.arrays["entropy_sq_sum"][0] = (own**2).sum(axis=0)
    found = entropy(made)
    for row, own in enumerate(bits.values()):
        assert found.mean_DL[row] == pytest.approx(own.mean(axis=0))
        assert found.deviation_DL[row] == pytest.approx(own.std(axis=0))
    # Every domain weighs the same: each token of the short one counts eight times.
    both = np.concatenate([np.repeat(bits["a"], 8, axis=0), bits["b"]])
    assert found.mean_L == pytest.approx(both.mean(axis=0))
    assert found.deviation_L == pytest.approx(both.std(axis=0))
    assert found.ratio(found.mean_L) == pytest.approx(both.mean(axis=0) / 2)


def test_entropy_with_idle_experts_and_passes():
    model = replace(synthetic.facts([6, 6]), idle_experts=2)
    made = synthetic.stats(synthetic.facts([6, 6]))
    idle = entropy(replace(made, model=model))
    assert idle.most_L.tolist() == [3.0, 3.0]
    looped = replace(synthetic.facts([6, 6]), passes=(1, 3))
    for domain in made.domains:
        for name in ("tokens", "entropy_sum", "entropy_sq_sum"):
            domain.arrays[name][:, 1] *= 3
    again = entropy(replace(made, model=looped))
    once = entropy(synthetic.stats(synthetic.facts([6, 6])))
    assert again.mean_L == pytest.approx(once.mean_L)
    assert again.ratio(again.mean_L) == pytest.approx(entropy_ratio_L(replace(made, model=looped)))


def test_a_layer_of_one_expert_has_no_ratio():
    made = synthetic.stats(synthetic.facts([4, 1], top_k=1))
    found = entropy(made)
    assert math.isnan(found.ratio(found.mean_L)[1]) and found.mean_L[1] == 0


@given(seed=st.integers(0, 10**4), domains=st.integers(1, 3))
def test_curves_rise_to_one(seed, domains):
    made = synthetic.stats(
        RAGGED, domains=("a", "b", "c")[:domains], tokens_F=(2, 1, 0, 1), seed=seed
    )
    for mass_LE in (rank_mass_LE(made), expert_mass_LE(made)):
        assert np.all(np.diff(mass_LE, axis=1) <= 1e-15)
        assert mass_LE.sum(axis=1) == pytest.approx(1)
        curve_LE = cumulative_LE(mass_LE)
        assert np.all(np.diff(curve_LE, axis=1) >= 0)
        assert np.all(curve_LE[:, -1] == 1) and np.all(curve_LE[1, 2:] == 1)


def test_mass_against_slow_loops():
    made = synthetic.stats(RAGGED, seed=3)
    ranks_LE, experts_LE = rank_mass_LE(made), expert_mass_LE(made)
    for row, count in enumerate(RAGGED.num_experts):
        for field, found_LE in (("rank_prob_sum", ranks_LE), ("prob_sum", experts_LE)):
            shares = []
            for expert in range(count):
                each = [
                    sum(domain.arrays[field][fold, row, expert] for fold in range(4))
                    / sum(domain.arrays["tokens"][fold, row] for fold in range(4))
                    for domain in made.domains
                ]
                shares.append(sum(each) / len(each))
            want = sorted((share / sum(shares) for share in shares), reverse=True)
            assert found_LE[row, :count].tolist() == pytest.approx(want)


def test_the_likeliest_experts_hold_more_than_the_most_used():
    """A token's own best k beat any k that serve all tokens."""
    made = synthetic.stats(RAGGED, seed=1)
    ranks_LE, experts_LE = (cumulative_LE(part(made)) for part in (rank_mass_LE, expert_mass_LE))
    assert np.all(ranks_LE >= experts_LE - 1e-12)


@given(width=st.integers(1, 500), top_k=st.integers(1, 12))
def test_grid(width, top_k):
    top_k = min(top_k, width)
    found = grid(width, top_k)
    assert found[0] == 1 and found[-1] == width and top_k in found
    assert list(found) == sorted(set(found)) and len(found) < 30


def test_divergence_pair_by_pair():
    made = synthetic.stats(RAGGED, seed=5)
    found = divergence(made)
    splits = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))

    def mass(domain, folds, row):
        own = made.domains[domain].arrays["prob_sum"][list(folds), row].sum(axis=0)
        return own / own.sum()

    for row in range(3):
        for one, two in itertools.product(range(3), repeat=2):
            bits = [
                scipy.spatial.distance.jensenshannon(mass(a, x, row), mass(b, y, row), base=2) ** 2
                for x, y in splits
                for a, b in ((one, two), (two, one))
            ]
            if one == two:
                assert found.noise_DL[one, row] == pytest.approx(np.mean(bits), abs=1e-12)
                assert math.isnan(found.between_DDL[one, two, row])
            else:
                assert found.between_DDL[one, two, row] == pytest.approx(np.mean(bits), abs=1e-12)
    assert np.array_equal(found.between_DDL, found.between_DDL.transpose(1, 0, 2), equal_nan=True)


@pytest.mark.parametrize("seed", range(3))
def test_domains_that_are_one_do_not_rise_above_the_noise(seed):
    """Six names for one distribution: between and floor have the same expectation."""
    alike = divergence(drawn(seed, own=0.0, noise=0.05))
    between = np.nanmean(alike.between_DDL)
    assert between == pytest.approx(alike.noise_DL.mean(), rel=0.1)
    apart = divergence(drawn(seed, own=0.1, noise=0.05))
    assert np.nanmean(apart.between_DDL) > 3 * apart.noise_DL.mean()


def test_without_halves_there_is_no_floor():
    made = synthetic.stats(RAGGED, tokens_F=(9, 0, 0, 0))
    found = divergence(made)
    assert found.noise_DL is None
    one, two = (
        domain.arrays["prob_sum"][0] / domain.arrays["prob_sum"][0].sum(axis=1, keepdims=True)
        for domain in made.domains[:2]
    )
    assert found.between_DDL[0, 1] == pytest.approx(jensen_shannon(one, two))


def test_the_simulated_ranking_loses_the_worst_domain():
    """Figure 8: τ falls as entropy rises, and sharply so above 0.85."""
    for seed in range(3):
        points = regime.simulate(seed=seed)
        ratios, taus = [point.entropy_ratio for point in points], [point.tau for point in points]
        assert ratios == sorted(ratios)
        assert scipy.stats.spearmanr(ratios, taus).statistic < -0.98
        assert taus[0] > 0.85 and taus[-1] < 0.35
        at = np.interp([0.45, 0.65, 0.85, 0.92], ratios, taus)
        slopes = np.diff(at) / np.diff([0.45, 0.65, 0.85, 0.92])
        assert slopes[2] < 3 * slopes[1] < 0
    assert regime.simulate(seed=1) == regime.simulate(seed=1) != regime.simulate(seed=2)


def test_tau_of_the_worst_domain():
    mass_DLE = np.array([[[0.4, 0.3, 0.2, 0.1]], [[0.1, 0.2, 0.3, 0.4]]])
    score_LE = np.array([[0.3, 0.27, 0.23, 0.2]])  # takes expert 3: the second domain loses most
    assert regime.global_tau(score_LE, mass_DLE, [4]) == -1
    assert math.isnan(regime.global_tau(np.ones((1, 1)), np.ones((2, 1, 1)), [1]))


def test_stats_made_from_matrices_hold_them():
    mass_DFLE = distributions(0, (2, 4, 3, 8))
    reap_LE = distributions(1, (3, 8))
    made = stats_of(synthetic.facts([8, 8, 8]), ["a", "b"], mass_DFLE, reap_LE=reap_LE)
    own = made.domains[1].arrays
    assert own["prob_sum"][2] / 2000 == pytest.approx(mass_DFLE[1, 2])
    seen = own["count"].sum(axis=0) > 0
    reap = own["gate_norm_sum"].sum(axis=0)[seen] / own["count"].sum(axis=0)[seen]
    assert reap == pytest.approx(reap_LE[seen])

"""Every criterion against a loop over the tokens themselves."""

from dataclasses import replace

import numpy as np
import pytest
import raw_tokens
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune import criteria, plugins
from moeprune.core.pooling import domain_sums, pool
from moeprune.core.stats import ALL_FIELDS

MEASURING = [name for name in plugins.names(criteria) if name != "random"]

MEAN, SUM, SHARE = "mean over routed tokens", "sum per token of text", "share of the layer"
TARGET = "sum per target token"  # here every token is one
# name -> what a visit gives an expert it is routed to (share: any expert), how it is put together,
# and the power of norms in it. Written from the papers' formulas, not from the code.
FORMULAS = {
    "reap": (lambda visit, e: visit.gate[e] * visit.norm[e], MEAN, 1),
    "reap-sum": (lambda visit, e: visit.gate[e] * visit.norm[e], SUM, 1),
    "reap-prob": (lambda visit, e: visit.prob[e] * visit.norm[e], MEAN, 1),
    "mass": (lambda visit, e: visit.prob[e], SHARE, 0),
    "frequency": (lambda visit, e: 1.0, SUM, 0),
    "gate": (lambda visit, e: visit.gate[e], SUM, 0),
    "ean": (lambda visit, e: visit.norm[e], MEAN, 1),
    "ean-sum": (lambda visit, e: visit.norm[e], SUM, 1),
    "man": (lambda visit, e: visit.norm[e], MEAN, 1),
    "msan": (lambda visit, e: visit.norm[e] * visit.norm[e], MEAN, 2),
    "fisher": (lambda visit, e: raw_tokens.changes(visit, e)[0] ** 2, TARGET, 2),
    "fisher-cf": (lambda visit, e: raw_tokens.changes(visit, e)[1] ** 2, TARGET, 2),
    "abs-cf": (lambda visit, e: abs(raw_tokens.changes(visit, e)[1]), TARGET, 1),
}
NEVER = frozenset({1})
MODELS = {
    "plain": synthetic.facts([8, 5]),
    "a layer that runs three times": replace(synthetic.facts([6, 6, 4]), passes=(1, 3, 1)),
    "every layer runs twice": replace(synthetic.facts([6, 6]), passes=(2, 2)),
}
WEIGHTS = {
    "equal": None,
    "tokens": "tokens",
    "one heavier": {"long": 3.0},
    "one left out": {"short": 0.0},
}


def the_visits(model, seed=11):
    rng = np.random.default_rng(seed)
    return {
        name: raw_tokens.visits(model, tokens, rng, never=NEVER)
        for name, tokens in (("long", 90), ("short", 7), ("middle", 31))
    }


def by_loop(name, model, seen, weights):
    """Every token of a domain weighs w / (tokens of the domain); then the formula."""
    value, kind, _ = FORMULAS[name]
    passes = 1 if kind == TARGET else min(model.passes or (1,))
    tokens = {
        domain: passes * sum(visit.row == 0 for visit in each) / (model.passes or (1,))[0]
        for domain, each in seen.items()
    }
    share = {
        domain: tokens[domain] if weights == "tokens" else (weights or {}).get(domain, 1.0)
        for domain in seen
    }
    scores = []
    for row, count in enumerate(model.num_experts):
        top, bottom = [0.0] * count, [0.0] * count
        for domain, each in seen.items():
            for visit in each:
                if visit.row != row:
                    continue
                weight = share[domain] / tokens[domain] / sum(share.values())
                for e in range(count) if kind == SHARE else visit.gate:
                    top[e] += weight * value(visit, e)
                    bottom[e] += weight
        if kind == MEAN:
            scores.append([a / b if b else 0.0 for a, b in zip(top, bottom, strict=True)])
        elif kind == SHARE:
            scores.append([a / sum(top) for a in top])
        else:
            scores.append(top)
    return scores


def test_every_criterion_has_its_formula_here():
    assert set(FORMULAS) == set(MEASURING)


@pytest.mark.parametrize("name", MEASURING)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("weighted", WEIGHTS)
def test_the_formula_token_by_token(name, kind, weighted):
    model, weights = MODELS[kind], WEIGHTS[weighted]
    seen = the_visits(model)
    module = plugins.load(criteria, name)
    sums = pool(raw_tokens.stats(model, seen, loss=True), module.NEEDS, domain_weights=weights)
    scores_LE = module.score(sums)
    for row, want in enumerate(by_loop(name, model, seen, weights)):
        np.testing.assert_allclose(scores_LE[row, : len(want)], want, rtol=1e-10, atol=0)
        assert not scores_LE[row, len(want) :].any()
        assert name == "mass" or scores_LE[row, 1] == 0  # the expert that no token reached
        assert np.count_nonzero(scores_LE[row]) >= len(want) - 2


@pytest.mark.parametrize("name", MEASURING)
def test_the_formula_of_each_domain(name):
    model = MODELS["plain"]
    seen = the_visits(model)
    module = plugins.load(criteria, name)
    for domain, sums in zip(
        seen, domain_sums(raw_tokens.stats(model, seen, loss=True), module.NEEDS), strict=True
    ):
        for row, want in enumerate(by_loop(name, model, {domain: seen[domain]}, None)):
            np.testing.assert_allclose(
                module.score(sums)[row, : len(want)], want, rtol=1e-10, atol=0
            )


@pytest.mark.parametrize("name", MEASURING)
def test_text_repeated_changes_nothing(name):
    """A domain's text three times over, exact duplicates: no score moves, mean or sum."""
    model = MODELS["plain"]
    seen = the_visits(model)
    module = plugins.load(criteria, name)
    before_LE = module.score(pool(raw_tokens.stats(model, seen, loss=True), module.NEEDS))
    longer = raw_tokens.stats(model, {**seen, "short": seen["short"] * 3}, loss=True)
    after_LE = module.score(pool(longer, module.NEEDS))
    np.testing.assert_allclose(after_LE, before_LE, rtol=1e-12, atol=0)
    by_tokens_LE = module.score(pool(longer, module.NEEDS, domain_weights="tokens"))
    assert not np.allclose(by_tokens_LE, after_LE, rtol=1e-3)  # there its length counts


@pytest.mark.parametrize("name", MEASURING)
def test_norms_twice_as_large(name):
    model = MODELS["plain"]
    seen = the_visits(model)
    twice = {
        domain: [
            replace(visit, norm={e: 2 * norm for e, norm in visit.norm.items()}) for visit in each
        ]
        for domain, each in seen.items()
    }
    module = plugins.load(criteria, name)
    one_LE, two_LE = (
        module.score(pool(raw_tokens.stats(model, each, loss=True), module.NEEDS))
        for each in (seen, twice)
    )
    np.testing.assert_allclose(two_LE, 2.0 ** FORMULAS[name][2] * one_LE, rtol=1e-12, atol=0)


def test_two_names_for_one_number():
    model = MODELS["plain"]
    stats = raw_tokens.stats(model, the_visits(model))
    ean, man = (plugins.load(criteria, name) for name in ("ean", "man"))
    assert ean.NEEDS == man.NEEDS
    assert np.array_equal(ean.score(pool(stats, ean.NEEDS)), man.score(pool(stats, man.NEEDS)))


@pytest.mark.parametrize(("total", "mean"), [("reap-sum", "reap"), ("ean-sum", "ean")])
def test_a_sum_is_the_mean_times_the_frequency(total, mean):
    model = MODELS["a layer that runs three times"]
    stats = raw_tokens.stats(model, the_visits(model))
    total_LE, mean_LE, frequency_LE = (
        plugins.load(criteria, name).score(pool(stats, plugins.load(criteria, name).NEEDS))
        for name in (total, mean, "frequency")
    )
    np.testing.assert_allclose(total_LE, mean_LE * frequency_LE, rtol=1e-12)


@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(MEASURING),
    values=st.lists(
        st.sampled_from([0.0, 5e-324, 1e-300, 1e-12, 1.0, 1e12, 1e300]), min_size=12, max_size=12
    ),
)
@pytest.mark.filterwarnings("error")
def test_never_nan(name, values):
    module = plugins.load(criteria, name)
    numbers = iter(values)
    shape = (2, 3)
    sums = {field: np.zeros(shape) for field in module.NEEDS}
    for field, array in sums.items():
        assert ALL_FIELDS[field][0] == "LE"
        array[:] = np.array([next(numbers) for _ in range(6)]).reshape(shape)
    for field in set(sums) - {"count"}:
        # What no token reached has no sums; a token's norm is far from overflowing.
        if "count" in sums:
            sums[field] = np.where(sums["count"] > 0, np.minimum(sums[field], 1e300), 0.0)
            sums["count"] = np.where(sums["count"] > 0, np.maximum(sums["count"], 1e-6), 0.0)
    scores_LE = module.score(sums)
    assert np.isfinite(scores_LE).all()
    assert (scores_LE >= 0).all()
    if "count" in sums:
        assert not scores_LE[sums["count"] == 0].any()

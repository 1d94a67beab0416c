"""Method auto on drawn models: what it chooses, and that it never does so silently."""

import numpy as np
import pytest
import synthetic
from dispersed import drawn

import moeprune
from moeprune.cli.plan_text import plan_text
from moeprune.core.plan import PrunePlan
from moeprune.errors import UsageError

RATIO = 0.25
SMALL = synthetic.facts([16] * 6, top_k=2)


@pytest.mark.parametrize(
    ("changed", "method"),
    [
        ({}, "mesa"),
        ({"norms_follow_mass": 0.9}, "mesa"),
        ({"norms_follow_mass": 0.0}, "reap"),
        ({"own": 0.0, "noise": 0.02}, "reap"),
        ({"noise": 0.25}, "reap"),
        ({"entropy": 0.74}, "reap"),
        ({"domains": 1}, "reap"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_choice(changed, method, seed, tmp_path):
    stats = drawn(seed, **changed)
    made = moeprune.plan(stats, method="auto", ratio=RATIO, output=tmp_path / "plan.json")
    assert made.method == method
    assert made.criterion == {"mesa": "mass", "reap": "reap"}[method]
    assert made.options["method"] == "auto"
    assert len(made.reasons) == 3
    assert made.keep == moeprune.plan(stats, method=method, ratio=RATIO).keep
    loaded = PrunePlan.load(tmp_path / "plan.json")
    assert loaded.reasons == made.reasons
    assert loaded.details["auto"] == made.details["auto"]
    text = plan_text(made, "")
    assert text.startswith(f"auto chose {method} (")
    for reason in made.reasons:
        assert reason in text


def test_the_evidence_is_that_of_the_plans():
    stats = drawn(3, model=SMALL)
    made = moeprune.plan(stats, method="auto", ratio=RATIO)
    seen = made.details["auto"]
    mesa, reap, mass = (
        moeprune.plan(stats, method=name, ratio=RATIO) for name in ("mesa", "reap", "rm-uniform")
    )
    assert seen["stability"] == {
        "mesa": mesa.stability["jaccard"],
        "reap": reap.stability["jaccard"],
    }
    assert seen["worst_domain_loss"]["mesa"] == mesa.worst_domain_loss
    assert seen["worst_domain"]["reap"] == reap.worst_domain
    for name, plan in (("mesa", mesa), ("mass", mass)):
        one, other = (
            {(row, e) for row, ids in enumerate(made_by.removed) for e in ids}
            for made_by in (plan, reap)
        )
        assert seen["overlap"][name] == pytest.approx(len(one & other) / len(one | other))
    assert seen["entropy_ratio"] == made.routing["entropy_ratio"]


def test_the_gain_is_measured_on_the_other_half():
    """Against plans made from stats that hold nothing but half of the folds."""
    stats = drawn(0, model=SMALL, noise=0.05)
    seen = moeprune.plan(stats, method="auto", ratio=RATIO).details["auto"]
    gains = []
    for half in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
        only = drawn(0, model=SMALL, noise=0.05)
        rest = [fold for fold in range(4) if fold not in half]
        for domain in only.domains:
            for array in domain.arrays.values():
                array[rest] = 0
        worst = []
        for method in ("rm-uniform", "mesa"):
            keep_LE = moeprune.plan(only, method=method, ratio=RATIO).keep_mask_LE()
            losses = []
            for domain in stats.domains:
                mass_LE = domain.arrays["prob_sum"][rest].sum(axis=0)
                mass_LE = mass_LE / mass_LE.sum(axis=1, keepdims=True)
                losses.append(mass_LE[~keep_LE].sum() / mass_LE.sum())
            worst.append(max(losses))
        gains.append(worst[0] - worst[1])
    assert seen["gain"] == pytest.approx(np.mean(gains), abs=1e-11)
    assert seen["gain_deviation"] == pytest.approx(np.std(gains), abs=1e-11)


def test_too_few_documents_to_be_halved():
    stats = synthetic.stats(SMALL, tokens_F=(9, 0, 0, 0), skew=0.1)
    made = moeprune.plan(stats, method="auto", ratio=RATIO)
    assert made.method == "reap"
    assert made.details["auto"]["gain"] is None
    assert "unknown share" in made.reasons[1]


@pytest.mark.parametrize("allocation", ["uniform", "global"])
def test_odd_models(allocation):
    ragged = synthetic.facts([8, 4, 16], top_k=2)
    for model, domains in ((ragged, ("μαθ", "コード")), (synthetic.facts([4]), ("one",))):
        stats = synthetic.stats(model, domains=domains)
        made = moeprune.plan(stats, method="auto", ratio=0.25, allocation=allocation)
        assert made.method in ("mesa", "reap") and len(made.reasons) == 3


def test_same_input_same_bytes():
    one, two = (moeprune.plan(drawn(5, model=SMALL), method="auto", ratio=0.5) for _ in range(2))
    assert one.to_bytes() == two.to_bytes()


@pytest.mark.parametrize(
    "constraints",
    [
        {"ratio": 0.25, "keep_layers": [0, -1]},
        {"ratio": 0.25, "multiple_of": 4, "allocation": "global"},
        {"max_bytes": "18kB"},
        {"keep": 10, "domain_weights": {"math": 3.0}},
    ],
    ids=str,
)
@pytest.mark.parametrize("follows", [1.0, 0.0])
def test_constraints_hold_whatever_is_chosen(constraints, follows):
    stats = drawn(1, model=SMALL, norms_follow_mass=follows)
    made = moeprune.plan(stats, method="auto", **constraints)
    assert made.options["method"] == "auto"
    assert made.keep == moeprune.plan(stats, method=made.method, **constraints).keep


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 5},
        {"boost": 0.3},
        {"seed": 0},
        {"time_limit": 9.0},
        {"criterion": "reap"},
        {"signal": "ean"},
    ],
)
def test_options_of_single_methods_are_refused(options):
    name = next(iter(options)).replace("_", "-")
    with pytest.raises(UsageError, match=f"--{name} .* does not go with --method auto"):
        moeprune.plan(drawn(0, model=SMALL), method="auto", ratio=RATIO, **options)

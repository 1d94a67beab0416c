"""Constraints: what they refuse, and budgets that meet them exactly whatever the scores are."""

import re

import numpy as np
import pytest
from constrained import check_choice, constraints, models
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import facts

from moeprune.core.budget import Budget
from moeprune.core.choice import keep_highest
from moeprune.core.constraints import Constraints, id_ranges
from moeprune.errors import UsageError

MODEL = facts([8, 8, 8, 8], layer_ids=[1, 2, 3, 7])


def of(model, limits, *, ratio=None, keep=None, allocation="uniform", multiple_of=1):
    return Budget.of(
        model,
        ratio=ratio,
        keep=keep,
        allocation=allocation,
        multiple_of=multiple_of,
        constraints=limits,
    )


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_every_constraint_holds_on_random_models(data):
    model = data.draw(models())
    multiple_of = data.draw(st.sampled_from([1, 1, 2, 3]))
    allocation = data.draw(st.sampled_from(["uniform", "global"]))
    percent = data.draw(st.integers(1, 95))
    try:
        asked = data.draw(constraints(model))
        budget = of(
            model, asked, ratio=percent / 100, allocation=allocation, multiple_of=multiple_of
        )
    except UsageError as refusal:
        assert "\n" not in str(refusal)
        return
    free = [
        n
        for layer, n in zip(model.layer_ids, model.num_experts, strict=True)
        if layer not in asked.layer_keep
    ]
    own = sum(
        count - asked.layer_keep[layer]
        for layer, count in zip(model.layer_ids, model.num_experts, strict=True)
        if layer in asked.layer_keep
    )
    unit = budget.unit
    if allocation == "global" and all(n % unit == 0 for n in free):
        assert budget.remove_total - own == percent * sum(free) // 100 // unit * unit
    if allocation == "uniform" and unit == 1:
        assert budget.remove_total - own == sum(percent * n // 100 for n in free)
    levels = data.draw(st.integers(1, 30))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    score_LE = rng.integers(0, levels, (model.num_layers, model.width)) / levels
    check_choice(keep_highest(score_LE, budget), model, asked, budget, multiple_of=multiple_of)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_refused_ratio_names_the_largest_that_works(data):
    model = data.draw(models())
    allocation = data.draw(st.sampled_from(["uniform", "global"]))
    protected = [
        sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=n))) for n in model.num_experts
    ]
    asked = Constraints.of(model, protected=[protected])

    def removed(percent):
        return of(model, asked, ratio=percent / 1000, allocation=allocation).remove_total

    try:
        removed(950)
    except UsageError as refusal:
        hint = re.search(r"Use --ratio ([0-9.]+) or less", str(refusal))
        keep = re.search(r"--keep ([0-9]+) or more", str(refusal))
        if keep is not None and int(keep[1]) < min(model.num_experts):
            of(model, asked, keep=int(keep[1]), allocation=allocation)
        if hint is None:
            return
        best = of(model, asked, ratio=float(hint[1]), allocation=allocation).remove_total
        for percent in range(5, 1000, 5):
            try:
                assert removed(percent) <= best
            except UsageError:
                continue


def test_kept_layers_lose_nothing_and_the_ratio_speaks_of_the_others():
    asked = Constraints.of(MODEL, keep_layers=[1, -1])
    assert of(MODEL, asked, ratio=0.25).max_remove == (0, 2, 2, 0)
    both = of(MODEL, asked, ratio=0.25, allocation="global")
    assert both.remove_total == 4
    assert both.max_remove == (0, 6, 6, 0)
    assert of(MODEL, asked, keep=5, allocation="global").remove_total == 6


def test_a_layer_of_its_own_count_loses_exactly_that():
    asked = Constraints.of(MODEL, layer_keep={3: 4, -1: 8})
    assert of(MODEL, asked, ratio=0.25).max_remove == (2, 2, 4, 0)
    budget = of(MODEL, asked, ratio=0.25, allocation="global")
    assert (budget.remove_total, budget.min_remove) == (8, (0, 0, 4, 0))
    # Layer 3 holds the best experts of all, and still loses four.
    score_LE = np.arange(32.0).reshape(4, 8)
    score_LE[2] += 1000
    keep_LE = keep_highest(score_LE, budget)
    assert keep_LE[2].tolist() == [False] * 4 + [True] * 4
    assert keep_LE.sum(axis=1).tolist() == [4, 8, 4, 8]


def test_every_layer_of_its_own_count_needs_no_ratio():
    model = facts([8, 8])
    asked = Constraints.of(model, keep_layers=[0], layer_keep={1: 6})
    assert of(model, asked).max_remove == (0, 2)
    with pytest.raises(UsageError, match="so --ratio says nothing: leave it out"):
        of(model, asked, ratio=0.5)


def test_groups_lose_the_same_where_one_protects():
    """Three of the first group of four stay, so every group keeps three."""
    model = facts([16], top_k=2, groups=4, top_groups=2)
    asked = Constraints.of(model, protected=[[[0, 1, 3]]])
    budget = of(model, asked, keep=12)
    keep_LE = keep_highest(-np.arange(16.0)[None], budget)
    assert np.flatnonzero(~keep_LE[0]).tolist() == [2, 7, 11, 15]
    with pytest.raises(UsageError) as refusal:
        of(model, asked, ratio=0.5)
    assert "layer 0 must keep 12 of its 16 experts (3 are protected)" in str(refusal.value)
    assert "Use --ratio 0.49 or less, or --keep 12 or more" in str(refusal.value)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"keep_layers": [0]}, "has no MoE layer 0; its MoE layers are 1-3, 7, and -1 is the last"),
        ({"keep_layers": [-5]}, "--keep-layers: org/model has no MoE layer -5"),
        ({"layer_keep": {4: 5}}, "--layer-keep: org/model has no MoE layer 4"),
        ({"layer_keep": {3: 0}}, "--layer-keep 3=0: 0 is not a count"),
        ({"layer_keep": {3: 9}}, "the layer has 8 experts. Use 8 to keep it whole"),
        ({"layer_keep": {3: 1}}, "--layer-keep 3=1 is too few: org/model must keep at least 2"),
        ({"layer_keep": {7: 4, -1: 5}}, "another --layer-keep names layer 7 too"),
        ({"keep_layers": [-1], "layer_keep": {7: 4}}, "--keep-layers names layer 7 too"),
        ({"keep_layers": [1, 2, 3, 7]}, "nothing can leave org/model: every layer is kept whole"),
        (
            {"layer_keep": {2: 4}, "protected": [[[], [0, 1, 2, 3, 4], [], []]]},
            "layer 2 must keep 5 of its 8 experts (5 are protected). Use 5 or more",
        ),
    ],
)
def test_refusals(asked, says):
    with pytest.raises(UsageError) as refusal:
        of(MODEL, Constraints.of(MODEL, **asked), ratio=0.25)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_units_hold_for_a_count_of_its_own():
    with pytest.raises(UsageError, match=r"--layer-keep 3=5 is not a multiple of 4 .*Use 4 or 8"):
        of(MODEL, Constraints.of(MODEL, layer_keep={3: 5}), ratio=0.5, multiple_of=4)


def test_ranges_of_ids():
    assert id_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


@pytest.mark.parametrize(
    ("experts", "protected", "asked", "way"),
    [
        ((4, 4), ((0, 1, 2, 3), ()), {"ratio": 0.5}, "Use --allocation global."),
        ((6, 8), ((0, 1, 2), ()), {"keep": 1}, "Use --keep 3 or more."),
        ((6, 6), ((), (0, 1, 2, 3, 4, 5)), {"keep": 1}, "Use --ratio."),
        ((5, 8), (), {"keep": 6, "multiple_of": 3}, "Use --keep 3 or fewer."),
        ((5, 8), (), {"keep": 7, "multiple_of": 6}, "Use --ratio."),
    ],
)
def test_the_way_out_leads_out(experts, protected, asked, way):
    model = facts(experts, top_k=2)
    limits = Constraints.of(model, protected=[protected] if protected else [])
    with pytest.raises(UsageError, match=re.escape(way)):
        of(model, limits, **asked)
    count = re.search(r"--keep (\d+)", way)
    if count:
        assert of(model, limits, **{**asked, "keep": int(count[1])}).remove_total

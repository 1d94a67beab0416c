"""Odd models: layers with several expert sets, layers that run several times, idle experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from synthetic import domain_arrays, facts

from moeprune.core.budget import Budget
from moeprune.core.diagnosis import entropy_ratio_L
from moeprune.core.facts import ModelFacts
from moeprune.core.plan import PrunePlan
from moeprune.core.rows import row_name, rows_of
from moeprune.core.stats import CalibrationStats, DomainStats
from moeprune.errors import MismatchError, PlanError, StatsError, UsageError

SETS = replace(facts((8, 8, 8)), layer_ids=(0, 2, 2), sets=("", "", "attention"))


def plan(**changes: Any) -> PrunePlan:
    values: dict[str, Any] = {
        "model_name": SETS.name,
        "model_fingerprint": SETS.fingerprint,
        "model_type": SETS.model_type,
        "top_k": SETS.top_k,
        "layer_ids": SETS.layer_ids,
        "sets": SETS.sets,
        "num_experts": SETS.num_experts,
        "keep": ((0, 1, 2, 3), (4, 5, 6), (0, 1, 7)),
    }
    return PrunePlan(**(values | changes))


def stats(model: ModelFacts, arrays: dict[str, Any]) -> CalibrationStats:
    domain = DomainStats(name="d", source="s", corpus_sha256="", documents=4, arrays=arrays)
    return CalibrationStats(model=model, domains=(domain,), provenance={})


def test_a_second_set_is_a_line_of_its_own() -> None:
    made = plan()
    assert '{"layer": 2, "num_experts": 8, "keep": [4, 5, 6]},\n' in made.to_bytes().decode()
    line = '{"layer": 2, "set": "attention", "num_experts": 8, "keep": [0, 1, 7]}\n'
    assert line in made.to_bytes().decode()
    assert PrunePlan.from_json(made.to_json(), path="p") == made
    assert made.check_against(SETS) is made


def test_the_sets_of_a_layer_keep_the_same_number() -> None:
    with pytest.raises(PlanError, match=r"layer 2 keeps 3 experts and layer 2 \(attention\) 4;"):
        plan(keep=((0, 1), (4, 5, 6), (0, 1, 2, 7)))
    with pytest.raises(PlanError, match=r"layer 2 \(attention\) keeps expert 8, but has"):
        plan(keep=((0, 1), (4, 5, 6), (0, 1, 8)))


@pytest.mark.parametrize(
    "sets", [("", "attention", ""), ("", "attention", "attention"), ("", "", "")]
)
def test_every_set_stands_once_and_in_order(sets: tuple[str, ...]) -> None:
    with pytest.raises(PlanError, match="stands after layer 2"):
        plan(sets=sets)


def test_a_set_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(MismatchError, match="expert sets"):
        plan(sets=("", "", "other")).check_against(SETS)
    body = plan().to_json()
    body["layers"][2]["set"] = 3
    with pytest.raises(PlanError, match="layer 2: set is 3; it should be a text"):
        PrunePlan.from_json(body, path="p")


def test_facts_of_ordinary_models_say_nothing_of_odd_things() -> None:
    assert not {"sets", "passes", "idle_experts"} & facts().to_json().keys()
    odd = replace(SETS, passes=(1, 3, 3), idle_experts=2)
    assert ModelFacts.from_json(odd.to_json()) == odd
    assert ModelFacts.from_json(facts().to_json()) == facts()


@pytest.mark.parametrize(
    "changes",
    [
        {"sets": ("", "")},
        {"sets": ("", "", 1)},
        {"sets": ("", "attention", "")},
        {"passes": (1, 0, 1)},
        {"passes": (1, 1)},
        {"passes": "111"},
        {"idle_experts": -1},
        {"idle_experts": "2"},
    ],
    ids=str,
)
def test_damaged_facts_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(StatsError, match="model facts"):
        ModelFacts.from_json(SETS.to_json() | changes)


def test_global_allocation_does_not_go_with_sets() -> None:
    with pytest.raises(UsageError, match="share one count"):
        Budget.of(SETS, ratio=0.5, keep=None, allocation="global")
    assert Budget.of(SETS, ratio=0.5, keep=None, allocation="uniform").max_remove == (4, 4, 4)


def test_a_layer_that_runs_thrice_counts_thrice() -> None:
    model = replace(facts((8, 8)), passes=(1, 3))
    once = domain_arrays(replace(model, passes=()), (5, 5, 5, 5), np.random.default_rng(0))
    arrays = {name: array.copy() for name, array in once.items()}
    for name, array in arrays.items():
        if name != "norm_max":
            array[:, 1] *= 3
    loop = stats(model, arrays)
    loop.check_counts()
    assert loop.domains[0].num_tokens() == 20
    plain = stats(replace(model, passes=()), once)
    np.testing.assert_allclose(entropy_ratio_L(loop), entropy_ratio_L(plain))
    with pytest.raises(StatsError, match="did not all see the same tokens"):
        stats(replace(model, passes=()), arrays).check_counts()
    with pytest.raises(StatsError, match="did not all see the same tokens"):
        stats(replace(model, passes=(1, 2)), arrays).check_counts()


def test_with_idle_experts_sums_are_upper_bounds() -> None:
    model = replace(facts((8, 8)), idle_experts=2)
    arrays = domain_arrays(facts((8, 8)), (5, 5, 5, 5), np.random.default_rng(0))
    stats(model, arrays).check_counts()
    for name, array in arrays.items():
        if name not in ("norm_max", "tokens", "entropy_sum", "entropy_sq_sum"):
            array[:] = array // 2
    stats(model, arrays).check_counts()
    with pytest.raises(StatsError, match="routed tokens"):
        stats(facts((8, 8)), arrays).check_counts()
    arrays["entropy_sum"][:, 0] = arrays["tokens"][:, 0] * np.log2(9.9)
    stats(model, arrays).check_counts()
    np.testing.assert_allclose(entropy_ratio_L(stats(model, arrays))[0], np.log2(9.9) / np.log2(10))
    with pytest.raises(StatsError, match="entropy"):
        stats(facts((8, 8)), domain_arrays_with_entropy(9.9)).check_counts()


def domain_arrays_with_entropy(choices: float) -> dict[str, Any]:
    arrays = domain_arrays(facts((8, 8)), (5, 5, 5, 5), np.random.default_rng(0))
    arrays["entropy_sum"][:, 0] = arrays["tokens"][:, 0] * np.log2(choices)
    return arrays


def test_names_of_rows() -> None:
    assert rows_of((1, 2), ()) == ((1, ""), (2, ""))
    assert row_name(1, "") == "layer 1" and row_name(2, "attention") == "layer 2 (attention)"

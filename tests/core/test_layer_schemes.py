"""The scheme of every layer, as a plan stores it: checked on load, compared, told when edited."""

import json
from dataclasses import replace

import pytest
import synthetic

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.core.plan_diff import diff_plans
from moeprune.core.plan_edits import kept_sha256
from moeprune.core.quantisation import LayerSchemes
from moeprune.errors import PlanError

MODEL = synthetic.facts([8, 8, 8], layer_ids=[1, 2, 5])
CHOSEN = LayerSchemes(
    schemes=("int4", "none", "int8"),
    group_sizes={"int4": 32, "int8": 128},
    details={"budget": 1000, "bytes": 990, "criterion": "mass", "loss": 0.5, "bound": 0.5},
)


def with_schemes(plan, chosen=CHOSEN):
    sha256 = kept_sha256(plan.layer_ids, plan.sets, plan.keep, chosen.schemes)
    return replace(plan, quantize=chosen, kept_sha256=sha256)


@pytest.fixture(scope="module")
def plain():
    return moeprune.plan(synthetic.stats(MODEL, seed=2), ratio=0.25, method="reap")


@pytest.fixture
def plan(plain):
    return with_schemes(plain)


def reread(plan, path, change=lambda body: None):
    body = json.loads(plan.to_bytes())
    change(body)
    path.write_text(json.dumps(body))
    return PrunePlan.load(path)


def test_a_plan_keeps_its_schemes(plan, plain, tmp_path):
    body = plan.to_json()
    assert [line["scheme"] for line in body["layers"]] == ["int4", "none", "int8"]
    assert body["quantize"]["budget"] == 1000
    again = reread(plan, tmp_path / "p.json")
    assert again == plan and not again.edited
    assert again.to_bytes() == plan.to_bytes()
    assert "quantize" not in plain.to_json()
    assert all("scheme" not in line for line in plain.to_json()["layers"])


def test_a_plan_may_change_schemes_alone(plain):
    keep = tuple(tuple(range(count)) for count in plain.num_experts)
    whole = with_schemes(replace(plain, keep=keep, quantize=CHOSEN))
    assert whole.num_removed == 0 and not whole.edited
    with pytest.raises(PlanError, match="removes no expert"):
        replace(plain, keep=keep)


def set_scheme(scheme, row=1):
    def change(body):
        body["layers"][row]["scheme"] = scheme

    return change


def test_another_scheme_is_an_edit(plan, tmp_path):
    found = reread(plan, tmp_path / "p.json", set_scheme("int8"))
    assert found.edited
    shown = found.without_stale()
    assert shown.quantize.schemes == ("int4", "int8", "int8")
    assert shown.quantize.details == {"budget": 1000}
    assert shown.size == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (set_scheme("fp8"), "scheme 'fp8' of a layer is none of none, int8, int4"),
        (set_scheme(["int4"]), "1 of 3 have none"),
        (lambda body: body["layers"][0].pop("scheme"), "1 of 3 have none"),
        (lambda body: body.pop("quantize"), "quantize is None"),
        (lambda body: body["quantize"].pop("scheme"), "quantize is"),
        (lambda body: body["quantize"].update(group_sizes=[32]), "group_sizes is"),
        (lambda body: body["quantize"]["group_sizes"].pop("int8"), "int8 has None"),
        (lambda body: body["quantize"]["group_sizes"].update(int4=0), "int4 has 0"),
        (lambda body: body["quantize"].update(budget="18GB"), "quantize.budget is '18GB'"),
        (lambda body: body["quantize"].update(budget=True), "quantize.budget is True"),
    ],
)
def test_what_no_export_could_follow_is_refused(change, says, plan, tmp_path):
    with pytest.raises(PlanError) as caught:
        reread(plan, tmp_path / "p.json", change)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_schemes_for_other_layers_are_refused(plain):
    with pytest.raises(PlanError, match="3 layers and 1 schemes"):
        replace(plain, quantize=LayerSchemes(schemes=("none",)))


def test_a_difference_names_both_schemes(plan, plain):
    other = with_schemes(plain, replace(CHOSEN, schemes=("int4", "int4", "int8")))
    found = diff_plans(plan, other)
    assert [row.schemes for row in found.rows] == [("int4",) * 2, ("none", "int4"), ("int8",) * 2]
    assert found.to_json()["layers"][1]["scheme"] == {"a": "none", "b": "int4"}
    assert [row.schemes for row in diff_plans(plan, plain).rows][1] == ("none", None)
    assert "scheme" not in diff_plans(plain, plain).to_json()["layers"][0]

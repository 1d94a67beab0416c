"""Plans edited by hand: stale figures are told from true ones, promises are checked."""

import json
from dataclasses import replace

import pytest
import synthetic

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.core.plan_diff import diff_plans
from moeprune.errors import MismatchError, PlanError

MODEL = synthetic.facts([8, 8, 8], layer_ids=[1, 2, 5])
ASKED = {
    "ratio": 0.25,
    "method": "reap",
    "keep_layers": [1],
    "layer_keep": {5: 4},
    "must_keep": {"2": [3]},
    "multiple_of": 2,
}


@pytest.fixture(scope="module")
def stats():
    return synthetic.stats(MODEL, tokens_F=(12, 9, 10, 11), seed=2)


@pytest.fixture
def plan(stats):
    return moeprune.plan(stats, ratio=0.25, allocation="global")


def edited(plan, path, change):
    """Save, change the JSON as a person would, and load again."""
    body = json.loads(plan.to_bytes())
    change(body)
    path.write_text(json.dumps(body))
    return PrunePlan.load(path)


def swap(body, row=0):
    """Keep the lowest expert that left instead of the lowest that stays."""
    keep = body["layers"][row]["keep"]
    gone = next(e for e in range(body["layers"][row]["num_experts"]) if e not in keep)
    body["layers"][row]["keep"] = sorted([*keep[1:], gone])


def test_as_written_is_not_edited(plan, tmp_path):
    again = edited(plan, tmp_path / "p.json", lambda body: None)
    assert again == plan and not again.edited
    assert again.without_stale() is again


def test_a_change_beside_the_lists_is_no_edit_of_them(plan, tmp_path):
    found = edited(plan, tmp_path / "p.json", lambda body: body["warnings"].append("mine"))
    assert not found.edited


@pytest.mark.parametrize("change", [swap, lambda body: body.pop("kept_sha256")])
def test_figures_of_other_lists_are_left_out(plan, tmp_path, change):
    found = edited(plan, tmp_path / "p.json", change)
    assert found.edited
    shown = found.without_stale()
    assert shown.keep == found.keep
    assert (shown.domain_loss, shown.worst_domain, shown.worst_domain_loss) == ({}, None, None)
    assert (shown.lower_bound, shown.size, shown.stability) == (None, {}, {})
    assert any("edited by hand" in warning for warning in shown.warnings)
    # Saved and loaded again it is still told apart: nothing launders the figures.
    assert PrunePlan.from_json(found.to_json(), path="x").edited


def test_super_experts_are_still_named_after_an_edit(plan):
    named = replace(plan, details={"super_experts": {"1": [plan.keep[0][-1]]}, "other": 1})
    shown = replace(named, kept_sha256="0" * 64).without_stale()
    assert shown.details == {"super_experts": named.details["super_experts"]}


def test_an_edit_that_is_undone_is_none(plan, tmp_path):
    def twice(body):
        keep = list(body["layers"][0]["keep"])
        swap(body)
        body["layers"][0]["keep"] = keep

    assert not edited(plan, tmp_path / "p.json", twice).edited


def test_a_plan_without_figures_has_none_to_be_stale(plan):
    bare = {key: plan.to_json()[key] for key in ("schema", "model", "layers")}
    assert not PrunePlan.from_json(bare, path="x").edited


def edit(row, keep):
    def change(body):
        body["layers"][row]["keep"] = keep(body["layers"][row]["keep"])

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (edit(0, lambda keep: keep[:-2]), "layer 1 keeps 6 experts, options.keep_layers says 8"),
        (
            edit(2, lambda keep: list(range(6))),
            "layer 5 keeps 6 experts, options.layer_keep says 4",
        ),
        (edit(1, lambda keep: [0, 1, 2, 4, 5, 6]), "layer 2 loses expert 3, which options.must_k"),
        (edit(1, lambda keep: [0, 1, 2, 3, 4]), "layer 2 keeps 5 experts, options.multiple_of"),
        (lambda body: body["options"].update(keep_layers="1"), "options.keep_layers is '1'"),
        (lambda body: body["options"].update(layer_keep=[5]), "options.layer_keep is [5]"),
        (lambda body: body["options"].update(must_keep={"2": 3}), "options.must_keep is"),
        (
            lambda body: body.update(details={"super_experts": {"5": [0, 1, 2, 3, 4]}}),
            "which details.super_experts protects",
        ),
    ],
)
def test_promises_are_checked_on_load(stats, tmp_path, change, says):
    plan = moeprune.plan(stats, **ASKED)
    assert edited(plan, tmp_path / "p.json", lambda body: None) == plan
    with pytest.raises(PlanError) as refusal:
        edited(plan, tmp_path / "p.json", change)
    assert says in str(refusal.value) and "p.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_diff_in_plain_sets(stats):
    a = moeprune.plan(stats, method="reap", ratio=0.25)
    b = moeprune.plan(stats, method="rm-uniform", ratio=0.4, allocation="global")
    found = diff_plans(a, b)
    both = either = 0
    for row, gone_a, gone_b in zip(found.rows, a.removed, b.removed, strict=True):
        assert set(row.only_a) == set(gone_b) - set(gone_a)
        assert set(row.only_b) == set(gone_a) - set(gone_b)
        union = set(gone_a) | set(gone_b)
        assert row.jaccard == (len(set(gone_a) & set(gone_b)) / len(union) if union else 1.0)
        both, either = both + len(set(gone_a) & set(gone_b)), either + len(union)
    assert found.jaccard == both / either
    assert found.losses == {
        name: (a.domain_loss[name], b.domain_loss[name]) for name in a.domain_loss
    }
    assert diff_plans(a, a).jaccard == 1.0
    assert json.loads(json.dumps(found.to_json()))["layers"][0]["layer"] == 1


def test_diff_does_not_state_stale_losses(plan, tmp_path):
    found = diff_plans(edited(plan, tmp_path / "p.json", swap), plan)
    assert all(a is None and b is not None for a, b in found.losses.values())


def test_diff_refuses_other_models(plan):
    with pytest.raises(MismatchError, match=r"for different models: org/model .* and other"):
        diff_plans(plan, replace(plan, model_fingerprint="ab" * 32, model_name="other"))
    narrower = replace(plan, num_experts=(9, 8, 8))
    with pytest.raises(MismatchError, match="different layers or expert counts"):
        diff_plans(plan, narrower)

"""PrunePlan: golden bytes, round trips, and edits by hand that are refused."""

import json
from dataclasses import replace

import pytest
from synthetic import facts

from moeprune.core.plan import PrunePlan
from moeprune.errors import MismatchError, PlanError

PLAN = PrunePlan(
    model_name="org/modèle",
    model_fingerprint="5eed" * 16,
    model_type="made_up",
    top_k=2,
    num_groups=2,
    top_groups=1,
    layer_ids=(1, 3),
    num_experts=(8, 8),
    keep=((0, 1, 2, 5, 6, 7), (0, 1, 2, 3, 4, 5, 6, 7)),
    stats_sha256="ab" * 32,
    method="mesa",
    criterion="mass",
    allocation="global",
    options={"ratio": 0.15, "multiple_of": 1, "steps": 20, "boost": 0.15, "decay": "linear"},
    domain_loss={"math": 0.125, "code": 0.0625},
    worst_domain="math",
    worst_domain_loss=0.125,
    routing={
        "regime": "standard",
        "entropy_ratio": 0.75,
        "entropy_ratio_by_layer": [0.5, 1.0],
    },
    size={"bytes_before": 1000, "bytes_after": 800},
    stability={"splits": [0.5, None, 1.0], "jaccard": 0.75},
    warnings=("calibrate on more text",),
)

GOLDEN = """\
{
  "allocation": "global",
  "criterion": "mass",
  "domain_loss": {
    "code": 0.0625,
    "math": 0.125
  },
  "layers": [
    {"layer": 1, "num_experts": 8, "keep": [0, 1, 2, 5, 6, 7]},
    {"layer": 3, "num_experts": 8, "keep": [0, 1, 2, 3, 4, 5, 6, 7]}
  ],
  "method": "mesa",
  "model": {
    "fingerprint": "5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed",
    "model_type": "made_up",
    "name": "org/modèle",
    "num_groups": 2,
    "top_groups": 1,
    "top_k": 2
  },
  "options": {
    "boost": 0.15,
    "decay": "linear",
    "multiple_of": 1,
    "ratio": 0.15,
    "steps": 20
  },
  "ratio": 0.125,
  "routing": {
    "entropy_ratio": 0.75,
    "entropy_ratio_by_layer": [0.5, 1.0],
    "regime": "standard"
  },
  "schema": "moeprune.plan/1",
  "size": {
    "bytes_after": 800,
    "bytes_before": 1000
  },
  "stability": {
    "jaccard": 0.75,
    "splits": [0.5, null, 1.0]
  },
  "stats": "abababababababababababababababababababababababababababababababab",
  "warnings": [
    "calibrate on more text"
  ],
  "worst_domain": "math",
  "worst_domain_loss": 0.125
}
"""


def test_golden_bytes():
    assert PLAN.to_bytes() == GOLDEN.encode("utf-8")


def test_save_and_load(tmp_path):
    PLAN.save(tmp_path / "plan.json")
    loaded = PrunePlan.load(tmp_path / "plan.json")
    assert loaded == PLAN
    assert loaded.to_bytes() == GOLDEN.encode("utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_lower_bound_only_where_computed():
    assert "lower_bound" not in PLAN.to_json()
    bounded = replace(PLAN, lower_bound=0.1)
    assert bounded.to_json()["lower_bound"] == 0.1
    assert PrunePlan.from_json(json.loads(bounded.to_bytes()), path="x") == bounded


def test_what_follows_from_keep():
    assert PLAN.removed == ((3, 4), ())
    assert PLAN.num_removed == 2
    assert PLAN.ratio == 0.125
    assert PLAN.uniform_count is None
    assert replace(PLAN, keep=((0, 1, 4, 5), (0, 1, 4, 5))).uniform_count == 4
    ragged = replace(
        PLAN, num_groups=1, num_experts=(4, 6), keep=((0, 3), (1, 2, 5)), domain_loss={}
    )
    assert ragged.keep_mask_LE().tolist() == [
        [True, False, False, True, False, False],
        [False, True, True, False, False, True],
    ]


def test_a_plan_written_by_hand():
    body = {
        "schema": "moeprune.plan/1",
        "model": {key: PLAN.to_json()["model"][key] for key in PLAN.to_json()["model"]},
        "layers": PLAN.to_json()["layers"],
    }
    plan = PrunePlan.from_json(body, path="mine.json")
    assert plan.keep == PLAN.keep
    assert plan.method == "manual"
    assert plan.worst_domain is None


def edit(**changes):
    body = json.loads(GOLDEN)
    body.update(changes)
    return body


def with_keep(keep, *, row=0, **more):
    body = json.loads(GOLDEN)
    body["layers"][row].update(keep=keep, **more)
    return body


def without(key, within=None):
    body = json.loads(GOLDEN)
    del (body[within] if within else body)[key]
    return body


BAD = [
    (with_keep([0, 1, 2, 5, 6, 8]), "layer 1 keeps expert 8, but has experts 0 to 7"),
    (with_keep([-1, 1, 2, 5, 6, 7]), "layer 1 keeps expert -1"),
    (with_keep([0, 1, 1, 5, 6, 7]), "layer 1 lists expert 1 twice"),
    (with_keep([1, 0, 2, 5, 6, 7]), "layer 1 lists expert 0 after expert 1"),
    (with_keep([0, 1, 2, 5, 6, 7.0]), "layer 1 keeps 7.0"),
    (with_keep([0, 1, 2, 5, 6, True]), "layer 1 keeps True"),
    (with_keep([0, 1, 2, 5, 6, "7"]), "layer 1 keeps '7'"),
    (with_keep([0, 1, 2, 3, 5, 6]), "layer 1 keeps [4, 2] experts of its 2 router groups"),
    (with_keep([0, 4]), "layer 1 keeps 1 experts of each router group"),
    (with_keep([0]), "layer 1 keeps 1 experts, but each token runs 2"),
    (with_keep([]), "layer 1 keeps 0 experts"),
    (with_keep([0, 1, 2, 3, 4, 5, 6, 7]), "removes no expert"),
    (with_keep([0, 1, 2, 4, 5, 6], num_experts=7), "layer 1 has 7 experts, which do not divide"),
    (with_keep([0, 1], num_experts=-1), "layer 1 has -1 experts"),
    (with_keep("0-3"), "layer 1: keep is '0-3'; it should be a list"),
    (with_keep([0, 1, 2, 5, 6, 7], layer=3), "layer 3 stands after layer 3"),
    (with_keep([0, 1, 2, 5, 6, 7], layer="1"), "layers[0].layer is '1'"),
    (with_keep([0, 1, 2, 5, 6, 7], layer=True), "layers[0].layer is True"),
    (edit(layers=[]), "no layer"),
    (edit(layers=[3]), "entry 0 of 'layers' is 3"),
    (edit(layers={}), "layers is {}"),
    (edit(model=None), "model is None"),
    (edit(schema="moeprune.plan/2"), "moeprune.plan/2"),
    (edit(schema="moeprune.stats/1"), "moeprune.stats/1"),
    (edit(domain_loss={"math": "much"}), "domain_loss.math is 'much'"),
    (edit(worst_domain_loss=float("nan")), "NaN"),
    (edit(worst_domain_loss=1.5), "worst_domain_loss is 1.5"),
    (edit(options=[]), "options is []"),
    (edit(stats=3), "stats is 3"),
    (edit(warnings="none"), "warnings is 'none'"),
    (without("layers"), "layers is missing"),
    (without("schema"), "schema None"),
    (without("top_k", "model"), "model.top_k is missing"),
    ([1], "no JSON object"),
    (edit(size={"bytes_before": 10**400}), "a number of 401 digits"),
    (edit(routing={"entropy_ratio": float("inf")}), "Infinity"),
    (edit(options={"deep": json.loads("[" * 500 + "]" * 500)}), "levels deep"),
    (with_keep([0, 1, 2, 5, 6, 10**30]), "a number of 31 digits"),
]


@pytest.mark.parametrize(("body", "says"), BAD, ids=[says for _, says in BAD])
def test_bad_edits_are_refused(tmp_path, body, says):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(body))
    with pytest.raises(PlanError) as error:
        PrunePlan.load(path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_two_of_a_group_are_needed_even_for_one_expert_a_token():
    with pytest.raises(PlanError, match="each token needs 2 of a group"):
        replace(PLAN, top_k=1, keep=((0, 4), PLAN.keep[1]))


def test_more_than_the_fewest_of_a_group_is_needed():
    with pytest.raises(PlanError, match="each token needs 3 of a group"):
        replace(PLAN, top_k=3, keep=((0, 1, 4, 5), PLAN.keep[1]))


@pytest.mark.parametrize("data", [b"{", b"\xff\xfe", b""])
def test_not_json(tmp_path, data):
    (tmp_path / "plan.json").write_bytes(data)
    with pytest.raises(PlanError, match=r"plan\.json"):
        PrunePlan.load(tmp_path / "plan.json")


def test_a_key_twice_is_refused(tmp_path):
    """An edit that leaves the old list in place would otherwise win or lose silently."""
    path = tmp_path / "plan.json"
    path.write_text(GOLDEN.replace('"keep":', '"keep": [0], "keep":', 1))
    with pytest.raises(PlanError, match="'keep' occurs twice"):
        PrunePlan.load(path)


def test_a_model_name_that_is_not_utf8_can_be_saved(tmp_path):
    plan = replace(PLAN, model_name="mod\udcff")
    plan.save(tmp_path / "plan.json")
    assert PrunePlan.load(tmp_path / "plan.json") == plan


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(PlanError, match="does not exist"):
        PrunePlan.load(tmp_path / "no.json")
    with pytest.raises(PlanError, match="folder"):
        PrunePlan.load(tmp_path)


MODEL = facts([8, 8], top_k=2, groups=2, top_groups=1, layer_ids=[1, 3])


def test_check_against_returns_the_plan():
    assert PLAN.check_against(MODEL) is PLAN


def test_check_against_names_both_fingerprints():
    with pytest.raises(MismatchError) as error:
        PLAN.check_against(replace(MODEL, fingerprint="0123456789abcdef" * 4, name="other"))
    message = str(error.value)
    assert "5eed5eed5eed" in message
    assert "0123456789ab" in message
    assert "other" in message


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(MODEL, layer_ids=(1, 2)), "layers (1, 3)"),
        (replace(MODEL, num_experts=(8, 16)), "experts per layer (8, 8)"),
        (replace(MODEL, top_k=3), "experts per token 2"),
        (replace(MODEL, num_groups=4), "router groups 2"),
    ],
)
def test_check_against_an_edited_header(other, says):
    with pytest.raises(MismatchError) as error:
        PLAN.check_against(other)
    assert says in str(error.value)

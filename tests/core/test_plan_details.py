"""The details that commands print again are checked when a plan is read."""

import copy
import json

import pytest
import synthetic

import moeprune
from moeprune.cli.plan_text import plan_text
from moeprune.core.plan import PrunePlan
from moeprune.errors import PlanError


@pytest.fixture(scope="module")
def body():
    """A plan with all entries."""
    stats = synthetic.stats(synthetic.facts([8, 5]), domains=["math", "code"])
    for domain in stats.domains:
        domain.arrays["count"][:, 0, 2] = 0
    made = moeprune.plan(stats, method="mesa", signal="reap", ratio=0.25).to_json()
    assert {"signal", "unseen"} <= set(made["details"])
    made["details"]["search"] = {
        "fitness": {"best": 0.75, "uniform": 0.5},
        "generations": 50,
        "candidates": 1404,
        "evaluations": 1290,
        "domains": {
            "math": {"best": 0.9, "uniform": 0.4},
            "code": {"best": 0.6, "uniform": 0.6125},
        },
    }
    return made


def load(body, path):
    path.write_text(json.dumps(body))
    return PrunePlan.load(path)


def test_as_written(body, tmp_path):
    plan = load(body, tmp_path / "plan.json")
    assert plan.details == body["details"]
    assert "by its signal reap" in plan_text(plan, "end")
    assert (
        "search: fitness 0.7500, of the uniform plan 0.5000; 50 generations, 1,404 plans\n"
        "  below the uniform plan: code 0.6125 to 0.6000 (see --objective worst-domain)"
    ) in plan_text(plan, "end")


@pytest.mark.parametrize("key", ["signal", "unseen", "search"])
def test_an_entry_may_be_taken_out(key, body, tmp_path):
    edited = copy.deepcopy(body)
    del edited["details"][key]
    assert key not in load(edited, tmp_path / "plan.json").details
    assert plan_text(load(edited, tmp_path / "plan.json"), "end")


EDITS = [
    (("signal",), 3),
    (("signal",), None),
    (("signal", "name"), 3),
    (("signal", "domain_loss"), []),
    (("signal", "domain_loss"), {}),
    (("signal", "domain_loss", "math"), "0.1"),
    (("signal", "domain_loss", "math"), 1.5),
    (("signal", "domain_loss", "more"), 0.5),
    (("signal", "worst_domain"), "more"),
    (("signal", "worst_domain"), ["math"]),
    (("signal", "worst_domain_loss"), True),
    (("unseen",), []),
    (("unseen", "experts"), "3"),
    (("unseen", "experts"), -1),
    (("unseen", "layers"), [1]),
    (("unseen", "layers", "0"), 2),
    (("unseen", "layers", "0"), [1.5]),
    (("unseen", "domains"), None),
    (("unseen", "domains", "math"), "many"),
    (("search",), []),
    (("search", "fitness"), 0.5),
    (("search", "fitness", "best"), 1.5),
    (("search", "fitness", "uniform"), None),
    (("search", "candidates"), -1),
    (("search", "evaluations"), "1290"),
    (("search", "domains"), []),
    (("search", "domains", "math"), 0.5),
    (("search", "domains", "math", "best"), None),
]


@pytest.mark.parametrize(("where", "value"), EDITS)
def test_edits_of_another_form_are_refused(where, value, body, tmp_path):
    edited = copy.deepcopy(body)
    inner = edited["details"]
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    with pytest.raises(
        PlanError, match=rf"details\.{where[0]}.* take the entry {where[0]} out"
    ) as e:
        load(edited, tmp_path / "plan.json")
    assert "\n" not in str(e.value)

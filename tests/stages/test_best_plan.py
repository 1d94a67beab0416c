"""Method best and the predicted change of the loss, from stats made by hand to plan.json."""

import json
from dataclasses import replace

import numpy as np
import pytest
import synthetic
from brute import losses

import moeprune
from moeprune.cli.main import main
from moeprune.core.budget import Budget
from moeprune.core.constraints import Constraints
from moeprune.core.plan import PrunePlan
from moeprune.core.plan_diff import diff_plans
from moeprune.errors import PlanError, StatsError

MODEL = synthetic.facts([6, 8, 6])
EVEN = synthetic.facts([8, 8, 8])
PADDABLE = replace(EVEN, model_type="gpt_oss")


@pytest.fixture(scope="module")
def stats():
    """Targets are fewer than tokens, and not the same share of them in every domain."""
    made = synthetic.stats(MODEL, seed=3, loss=True, tokens_F=(9, 8, 7, 8))
    domains = []
    for place, domain in enumerate(made.domains):
        arrays = dict(domain.arrays)
        arrays["loss_tokens"] = arrays["loss_tokens"] - place
        domains.append(replace(domain, arrays=arrays))
    return replace(made, domains=tuple(domains))


def worth(stats, field="fisher_cf_sum"):
    return np.stack([domain.arrays[field].sum(axis=0) for domain in stats.domains])


def changes(stats, plan):
    """What docs/planning.md says is predicted: plain loops."""
    found = {}
    for domain in stats.domains:
        nats = 0.0
        for row, removed in enumerate(plan.removed):
            for expert in removed:
                nats += float(domain.arrays["fisher_cf_sum"][:, row, expert].sum()) / 2
        found[domain.name] = nats / int(domain.arrays["loss_tokens"].sum())
    return found


@pytest.mark.parametrize(
    ("asked", "constraints"),
    [
        ({"ratio": 0.4}, {}),
        ({"ratio": 0.4, "allocation": "uniform"}, {}),
        ({"ratio": 0.5, "keep_layers": [0]}, {"keep_layers": [0]}),
        ({"ratio": 0.4, "layer_keep": {1: 3}}, {"layer_keep": {1: 3}}),
        ({"ratio": 0.4, "must_keep": {"1": [0, 1, 2]}}, {"protected": [((), (0, 1, 2), ())]}),
        ({"ratio": 0.5, "multiple_of": 2}, {}),
    ],
)
def test_no_plan_of_the_budget_removes_a_smaller_share(asked, constraints, stats):
    plan = moeprune.plan(stats, method="best", gap=0.0, **asked)
    budget = Budget.of(
        MODEL,
        ratio=asked["ratio"],
        keep=None,
        allocation=asked.get("allocation", "global"),
        multiple_of=asked.get("multiple_of", 1),
        constraints=Constraints.of(MODEL, **constraints),
    )
    loss_PD = losses(worth(stats), budget, plan.num_removed)
    said = plan.details["signal"]
    assert said["name"] == plan.criterion == "fisher-cf"
    assert said["worst_domain_loss"] == pytest.approx(loss_PD.max(axis=1).min(), rel=1e-5)
    gone_DLE = worth(stats) * ~plan.keep_mask_LE()
    share_D = gone_DLE.sum(axis=(1, 2)) / worth(stats).sum(axis=(1, 2))
    names = [domain.name for domain in stats.domains]
    assert said["domain_loss"] == pytest.approx(dict(zip(names, share_D, strict=True)), abs=1e-11)
    tied_PD = loss_PD[loss_PD.max(axis=1) <= share_D.max() * (1 + 1e-12)]
    assert share_D.mean() == pytest.approx(tied_PD.mean(axis=1).min(), rel=1e-5)
    assert plan.predicted == pytest.approx(changes(stats, plan), abs=1e-11)


def test_with_router_groups():
    made = synthetic.stats(synthetic.facts([8, 8], groups=2, top_groups=1), seed=5, loss=True)
    plan = moeprune.plan(made, method="best", ratio=0.5, gap=0.0)
    budget = Budget.of(made.model, ratio=0.5, keep=None, allocation="global")
    least = losses(worth(made), budget, plan.num_removed).max(axis=1).min()
    assert plan.details["signal"]["worst_domain_loss"] == pytest.approx(least, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "target", "allocation", "says"),
    [
        (EVEN, None, "global", "no --target is named"),
        (EVEN, "transformers", "global", "transformers loads"),
        (EVEN, "vllm", "uniform", "vllm reads one expert count for all layers"),
        (EVEN, "any", "uniform", "vllm reads one expert count for all layers"),
        (PADDABLE, "vllm", "global", "vllm loads"),
        (PADDABLE, "any", "global", "every runtime loads"),
        (replace(EVEN, no_per_layer="it is stored in FP8"), None, "uniform", "stored in FP8"),
    ],
)
def test_the_target_decides_the_allocation(model, target, allocation, says):
    stats = synthetic.stats(model, seed=3, loss=True)
    plan = moeprune.plan(stats, method="best", ratio=0.4, target=target)
    assert plan.allocation == allocation
    (reason,) = plan.reasons
    assert reason.startswith(f"allocation {allocation}: ") and says in reason
    named = moeprune.plan(stats, method="best", ratio=0.4, allocation=allocation)
    assert named.reasons == ()
    assert named.keep == plan.keep


def test_a_size_in_bytes(stats):
    small = MODEL.total_bytes - 700
    plan = moeprune.plan(stats, method="best", max_bytes=small)
    assert plan.size["bytes_after"] == small and plan.num_removed == 7


def test_gradients_at_a_temperature_are_scaled_back(stats):
    """Those of the loss of logits / T are smaller by T."""
    warm = replace(stats, provenance={**stats.provenance, "loss_temperature": 3.0})
    one, three = (moeprune.plan(each, method="best", ratio=0.4) for each in (stats, warm))
    assert three.keep == one.keep
    assert three.predicted == pytest.approx({d: 9 * v for d, v in one.predicted.items()})
    assert one.details["predicted"] == {"loss": "all", "temperature": 1.0}
    assert three.details["predicted"] == {"loss": "all", "temperature": 3.0}
    for wrong in (0, "hot", None, float("inf")):
        made = replace(stats, provenance={**stats.provenance, "loss_temperature": wrong})
        with pytest.raises(StatsError, match="a loss_temperature of") as error:
            moeprune.plan(made, method="reap", ratio=0.4)
        assert "\n" not in str(error.value)


def test_auto_takes_best_where_it_can(stats):
    made = moeprune.plan(stats, ratio=0.4, target="transformers")
    named = moeprune.plan(stats, ratio=0.4, target="transformers", method="best")
    assert (made.method, made.allocation, made.keep) == ("best", "global", named.keep)
    assert made.options["method"] == "auto" and made.details["auto"]["loss"] is True
    assert made.reasons[2:3] == named.reasons
    assert made.reasons[-1].startswith("chosen best: the stats hold gradients of the loss")
    uniform = moeprune.plan(stats, ratio=0.4, allocation="uniform")
    assert (uniform.method, uniform.allocation, len(uniform.reasons)) == ("best", "uniform", 3)
    plain = moeprune.plan(synthetic.stats(MODEL), ratio=0.4)
    assert plain.method in ("mesa", "reap") and "loss" not in plain.details["auto"]


def test_stats_without_a_loss():
    plain = synthetic.stats(MODEL)
    with pytest.raises(StatsError, match="calibrate again with --loss-aware") as error:
        moeprune.plan(plain, method="best", ratio=0.4)
    assert "\n" not in str(error.value)
    plan = moeprune.plan(plain, method="reap", ratio=0.4)
    assert plan.predicted == {} and plan.worst_predicted is None
    assert not {"predicted", "worst_predicted"} & set(plan.to_json())
    assert moeprune.plan(plain, method="best", signal="reap", ratio=0.4).criterion == "reap"


def test_a_domain_without_targets(stats):
    arrays = {
        name: np.zeros_like(array)
        if name.startswith(("loss_", "fisher", "abs_")) or "change" in name
        else array
        for name, array in stats.domains[0].arrays.items()
    }
    made = replace(stats, domains=(replace(stats.domains[0], arrays=arrays), *stats.domains[1:]))
    with pytest.raises(StatsError, match="'math' has no target token"):
        moeprune.plan(made, method="best", ratio=0.4)
    assert moeprune.plan(made, method="reap", ratio=0.4).predicted == {}
    assert moeprune.plan(made, ratio=0.4).method in ("mesa", "reap")


def test_a_fold_without_targets(stats):
    """Its half of the text says nothing of that domain, and the plan is made all the same."""
    arrays = dict(stats.domains[0].arrays)
    for name, array in arrays.items():
        if name.startswith(("loss_", "fisher", "abs_")) or "change" in name:
            arrays[name] = array.copy()
            arrays[name][:2] = 0
    made = replace(stats, domains=(replace(stats.domains[0], arrays=arrays), *stats.domains[1:]))
    plan = moeprune.plan(made, method="best", ratio=0.4)
    assert 0 <= plan.stability["jaccard"] <= 1


@pytest.mark.parametrize("method", ["reap", "mesa", "random", "best"])
def test_every_plan_predicts(method, stats, tmp_path):
    plan = moeprune.plan(stats, method=method, ratio=0.4, output=tmp_path / "plan.json")
    assert plan.predicted == pytest.approx(changes(stats, plan), abs=1e-11)
    assert plan.predicted[plan.worst_predicted] == max(plan.predicted.values())
    read = PrunePlan.load(tmp_path / "plan.json")
    assert read == plan and read.to_bytes() == plan.to_bytes()


def test_a_domain_that_weighs_nothing_is_not_the_worst(stats):
    all_of = moeprune.plan(stats, method="reap", ratio=0.4)
    left = moeprune.plan(
        stats, method="reap", ratio=0.4, domain_weights={all_of.worst_predicted: 0}
    )
    assert set(left.predicted) == set(all_of.predicted)
    others = set(left.predicted) - {all_of.worst_predicted}
    assert left.worst_predicted == max(others, key=left.predicted.__getitem__)


def test_an_edited_plan_predicts_nothing_but_stats_do(stats, tmp_path, capsys):
    plan = moeprune.plan(stats, method="best", ratio=0.4)
    edited = replace(plan, keep=(tuple(range(6)), *plan.keep[1:]))
    assert edited.edited
    known = edited.without_stale()
    assert known.predicted == {} and known.worst_predicted is None
    (tmp_path / "edited.json").write_bytes(edited.to_bytes())
    main(["plan", "show", str(tmp_path / "edited.json")])
    assert "predict" not in capsys.readouterr().out
    body = moeprune.analyse(stats, plans=[plan, edited])["plans"]["plans"]
    for of, made in zip(body.values(), (plan, edited), strict=True):
        want = changes(stats, made)
        assert of["predicted"]["domains"] == pytest.approx(want, abs=1e-8)
        assert of["predicted"]["worst"] == max(want, key=want.__getitem__)


def test_the_difference_of_two_plans(stats, tmp_path, capsys):
    plain = synthetic.stats(MODEL)
    made = [
        moeprune.plan(stats, method="best", ratio=0.4),
        moeprune.plan(stats, method="reap", ratio=0.4),
        moeprune.plan(plain, method="reap", ratio=0.4),
    ]
    both = diff_plans(made[0], made[1])
    assert both.predicted == {
        name: (made[0].predicted[name], made[1].predicted[name]) for name in made[0].predicted
    }
    assert diff_plans(made[0], made[2]).predicted["math"] == (made[0].predicted["math"], None)
    assert "predicted" not in diff_plans(made[2], made[2]).to_json()
    for place, plan in enumerate(made):
        plan.save(tmp_path / f"{place}.json")
    main(["plan", "diff", str(tmp_path / "0.json"), str(tmp_path / "2.json")])
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if line.startswith("  math ")]
    assert line.split()[-3] == f"{made[0].predicted['math']:+.4g}" and line.endswith("not known")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("predicted", {"math": -0.1}, "predicted.math is -0.1; it should be a number from 0 up"),
        ("predicted", {"math": "much"}, "predicted.math is 'much'"),
        ("predicted", [], "predicted is []; it should be an object"),
        ("worst_predicted", "cooking", "worst_predicted is 'cooking', which 'predicted' does not"),
        ("worst_predicted", None, "worst_predicted is None"),
        ("details", {"predicted": {"temperature": 0}}, "details.predicted is not what moeprune"),
        ("details", {"predicted": {"temperature": 1, "loss": 3}}, "details.predicted is not"),
    ],
)
def test_a_prediction_that_was_edited_is_refused(key, value, says, stats, tmp_path):
    body = moeprune.plan(stats, method="best", ratio=0.4).to_json() | {key: value}
    (tmp_path / "plan.json").write_text(json.dumps(body))
    with pytest.raises(PlanError) as error:
        PrunePlan.load(tmp_path / "plan.json")
    assert says in str(error.value) and "\n" not in str(error.value)


def test_what_the_terminal_says(stats, tmp_path, capsys):
    stats.save(tmp_path / "stats.safetensors")
    words = ["plan", str(tmp_path / "stats.safetensors"), "--method", "best"]
    main([*words, "-o", str(tmp_path / "p.json"), "--ratio", "0.4"])
    plan = PrunePlan.load(tmp_path / "p.json")
    text = capsys.readouterr().out
    assert text.startswith("best (fisher-cf, global): keeps 12 of 20 experts")
    assert "\nwhy: allocation global: " in text
    assert "\nproven by fisher-cf: the worst loss is within " in text
    worst = plan.worst_predicted
    line = f"most in {worst}, {plan.predicted[worst]:+.4g} nats a token"
    assert f"\npredicted change of the loss: {line}\n" in text
    main([*words, "-o", str(tmp_path / "{ratio}.json"), "--ratio", "0.2,0.4"])
    assert f"{plan.predicted[worst]:+.4g} ({worst})" in capsys.readouterr().out

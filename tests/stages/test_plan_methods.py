"""Every method with every criterion it takes: the same choice, however experts and text come."""

import json
from dataclasses import replace

import numpy as np
import pytest
import raw_tokens
import synthetic

import moeprune
from moeprune import criteria, plugins
from moeprune.cli.main import main
from moeprune.core.methods import FROM_STATS, METHODS
from moeprune.core.plan import PrunePlan
from moeprune.core.stats import ALL_FIELDS
from moeprune.errors import UsageError

CRITERIA = plugins.names(criteria)
MODEL = synthetic.facts([8, 6, 7], layer_ids=[1, 2, 5])
ASKED = [
    (method, {found.option: name})
    for method, found in METHODS.items()
    if method in FROM_STATS
    for name in CRITERIA
    if found.option and not (found.option == "signal" and name == "random")
    # Of a solver, what it weighs by gives it other numbers and no other code.
    if method != "best" or name in ("reap", "abs-cf")
]
ALL = [(method, {}) for method in FROM_STATS] + ASKED
MEASURING = [(method, asked) for method, asked in ALL if "random" not in (method, *asked.values())]


def ids(case):
    return "-".join([case[0], *case[1].values()])


def with_allocations(cases):
    """Each case with each allocation: by default one of them by turns, the other under a marker.

    A criterion gives an allocator other numbers and no other code, and each method meets both.
    """
    return [
        pytest.param(
            case,
            allocation,
            id=f"{allocation}-{ids(case)}",
            marks=[] if not case[1] or place % 2 == turn else [pytest.mark.families],
        )
        for place, case in enumerate(cases)
        for turn, allocation in enumerate(["uniform", "global"])
    ]


@pytest.fixture(scope="module")
def seen():
    """Two domains of different length and taste, enough tokens that no two scores are equal."""
    rng = np.random.default_rng(8)
    return {
        "math": raw_tokens.visits(MODEL, 173, rng),
        "prose": raw_tokens.visits(MODEL, 59, rng),
        "code": raw_tokens.visits(MODEL, 101, rng),
    }


@pytest.fixture(scope="module")
def stats(seen):
    return raw_tokens.stats(MODEL, seen, loss=True)


def permuted(stats, orders):
    """The same model with its experts in another order: new expert i is old expert orders[i]."""
    domains = []
    for domain in stats.domains:
        arrays = {name: array.copy() for name, array in domain.arrays.items()}
        for name, array in arrays.items():
            if ALL_FIELDS[name][0] == "LE" and name != "rank_prob_sum":  # ranks are no experts
                for row, order in enumerate(orders):
                    array[:, row, : len(order)] = array[:, row, order]
        domains.append(replace(domain, arrays=arrays))
    return replace(stats, domains=tuple(domains))


@pytest.mark.parametrize(("case", "allocation"), with_allocations(MEASURING))
def test_permuting_experts_permutes_the_plan(case, allocation, stats):
    method, asked = case
    weights = {"math": 1.37}  # so that counts of different domains never tie
    rng = np.random.default_rng(2)
    orders = [rng.permutation(count) for count in MODEL.num_experts]
    options = dict(ratio=0.4, allocation=allocation, domain_weights=weights, **asked)
    one = moeprune.plan(stats, method=method, **options)
    other = moeprune.plan(permuted(stats, orders), method=method, **options)
    for order, mine, theirs in zip(orders, one.keep, other.keep, strict=True):
        assert {int(order[e]) for e in theirs} == set(mine)
    assert other.domain_loss == pytest.approx(one.domain_loss)


@pytest.mark.parametrize("case", MEASURING, ids=ids)
def test_repeating_a_domains_text_changes_no_plan(case, seen, stats):
    method, asked = case
    longer = raw_tokens.stats(MODEL, {**seen, "prose": seen["prose"] * 4}, loss=True)
    one, other = (
        moeprune.plan(each, method=method, ratio=0.4, **asked) for each in (stats, longer)
    )
    assert one.keep == other.keep
    assert other.domain_loss == pytest.approx(one.domain_loss)


@pytest.mark.parametrize("case", MEASURING, ids=ids)
def test_a_domain_that_weighs_nothing_takes_no_part(case, stats):
    method, asked = case
    options = dict(method=method, ratio=0.4, allocation="global", **asked)
    for weights in ({"prose": 0}, {"math": 0, "code": 0.0}):
        left = moeprune.plan(stats, domain_weights=weights, **options)
        others = tuple(domain for domain in stats.domains if domain.name not in weights)
        without = moeprune.plan(replace(stats, domains=others), **options)
        for name in ("keep", "method", "worst_domain", "worst_domain_loss", "lower_bound"):
            assert getattr(left, name) == getattr(without, name), name
        assert left.reasons == without.reasons
        for name in ("worst_domain", "worst_domain_loss"):
            at = [plan.details.get("signal", {}).get(name) for plan in (left, without)]
            assert at[0] == at[1]
        # What it loses is stated all the same.
        assert set(left.domain_loss) == {"math", "prose", "code"}
        assert left.domain_loss == {**left.domain_loss, **without.domain_loss}


def per_domain(module, stats):
    """Each domain's criterion from its own sums, rows scaled to 1: plain loops."""
    for domain in stats.domains:
        tokens = domain.num_tokens()
        score_LE = module.score(
            {name: domain.total(name).astype(float) / tokens for name in module.NEEDS}
        )
        yield domain.name, [[float(v) / sum(row.tolist()) for v in row] for row in score_LE]


@pytest.mark.parametrize("name", [name for name in CRITERIA if name != "random"])
def test_domain_reap_ranks_by_the_mean_of_the_domains(name, stats):
    plan = moeprune.plan(stats, method="domain-reap", criterion=name, keep=4)
    assert (plan.method, plan.criterion) == ("domain-reap", name)
    parts = [rows for _, rows in per_domain(plugins.load(criteria, name), stats)]
    for row, count in enumerate(MODEL.num_experts):
        mean = [sum(part[row][e] for part in parts) / len(parts) for e in range(count)]
        removed = sorted(range(count), key=lambda e, mean=mean: (mean[e], e))[: count - 4]
        assert plan.removed[row] == tuple(sorted(removed))


def test_domain_reap_differs_from_reap(stats):
    """Otherwise the test above would pass with the criterion of pooled sums."""
    differ = [
        name
        for name in CRITERIA
        if moeprune.plan(stats, method="domain-reap", criterion=name, keep=4).keep
        != moeprune.plan(stats, method="reap", criterion=name, keep=4).keep
    ]
    assert differ


@pytest.mark.parametrize("name", [name for name in CRITERIA if name not in ("random", "mass")])
@pytest.mark.parametrize("allocation", ["uniform", "global"])
def test_a_signal_states_both_losses(name, allocation, stats):
    plan = moeprune.plan(stats, method="mesa", signal=name, ratio=0.4, allocation=allocation)
    said = plan.details["signal"]
    assert said["name"] == plan.criterion == name
    for domain, rows in per_domain(plugins.load(criteria, name), stats):
        gone = sum(rows[row][e] for row, removed in enumerate(plan.removed) for e in removed)
        assert said["domain_loss"][domain] == pytest.approx(gone / MODEL.num_layers, abs=1e-11)
    assert said["worst_domain_loss"] == max(said["domain_loss"].values())
    assert said["domain_loss"][said["worst_domain"]] == said["worst_domain_loss"]
    mass = moeprune.plan(stats, method="mesa", ratio=0.4, allocation=allocation)
    assert "signal" not in mass.details
    assert plan.domain_loss.keys() == mass.domain_loss.keys()
    by_mass = dict(per_domain(plugins.load(criteria, "mass"), stats))
    for domain, rows in by_mass.items():
        gone = sum(rows[row][e] for row, removed in enumerate(plan.removed) for e in removed)
        assert plan.domain_loss[domain] == pytest.approx(gone / MODEL.num_layers, abs=1e-11)


@pytest.mark.parametrize("name", [name for name in CRITERIA if name not in ("random", "mass")])
def test_mesa_by_a_signal_is_never_worse_than_its_first_step(name, stats):
    first, found = (
        moeprune.plan(stats, method="mesa", signal=name, keep=4, steps=steps).details["signal"]
        for steps in (1, 20)
    )
    assert found["worst_domain_loss"] <= first["worst_domain_loss"]


def test_the_default_signal_is_mass(stats):
    mesa = moeprune.plan(stats, method="mesa", keep=4)
    assert moeprune.plan(stats, method="mesa", signal="mass", keep=4) == mesa


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("signal", ["reap", "ean-sum", "msan"])
def test_a_domain_whose_experts_add_nothing_has_nothing_to_lose(signal, stats):
    dead = {
        name: np.zeros_like(array) if "norm" in name else array
        for name, array in stats.domains[0].arrays.items()
    }
    domains = (replace(stats.domains[0], arrays=dead), *stats.domains[1:])
    plan = moeprune.plan(replace(stats, domains=domains), method="mesa", signal=signal, ratio=0.4)
    said = plan.details["signal"]
    assert said["domain_loss"]["math"] == 0
    assert said["worst_domain"] != "math" and said["worst_domain_loss"] > 0
    assert plan.domain_loss["math"] > 0


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"method": "reap", "signal": "mass"}, "--signal goes with: "),
        ({"method": "mesa", "criterion": "mass"}, "--criterion goes with: domain-reap, "),
        ({"method": "mesa", "signal": "rea"}, "Did you mean 'reap'"),
        ({"method": "mesa", "signal": "random"}, "says nothing of what a domain loses"),
        ({"method": "mesa", "signal": "reap", "seed": 1}, "Leave --seed out"),
        ({"method": "random", "criterion": "ean"}, "goes by random alone"),
        ({"method": "domain-reap", "criterion": "eann"}, "Did you mean 'ean'"),
    ],
)
def test_refusals(asked, says, stats):
    with pytest.raises(UsageError) as error:
        moeprune.plan(stats, ratio=0.4, **asked)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_unseen_experts_are_in_the_plan():
    model = synthetic.facts([20, 20])
    rng = np.random.default_rng(0)
    never = frozenset({3, 17})
    rare = raw_tokens.visits(model, 400, rng, never=frozenset({3}), skew=0.0)
    stats = raw_tokens.stats(
        model, {"a": raw_tokens.visits(model, 400, rng, never=never, skew=0.0), "b": rare}
    )
    plan = moeprune.plan(stats, method="reap", ratio=0.1)
    assert plan.details["unseen"] == {
        "experts": 2,
        "layers": {"0": [3], "1": [3]},
        "domains": {"a": 4, "b": 2},
    }
    assert all(3 in removed for removed in plan.removed)  # worth 0: the first to leave
    assert not any("saw no token" in warning for warning in plan.warnings)
    left_out = moeprune.plan(stats, method="reap", ratio=0.1, domain_weights={"b": 0})
    assert left_out.details["unseen"]["layers"] == {"0": [3, 17], "1": [3, 17]}
    assert left_out.removed == ((3, 17), (3, 17))
    (line,) = [warning for warning in left_out.warnings if "saw no token" in warning]
    assert line.startswith("4 of 40 experts saw no token of a domain that weighs more than 0")


@pytest.mark.parametrize(("case", "allocation"), with_allocations(ALL))
def test_the_command_line(case, allocation, stats, tmp_path, capsys):
    method, asked = case
    path, out = tmp_path / "stats.safetensors", tmp_path / "plan.json"
    stats.save(path)
    words = ["plan", str(path), "-o", str(out), "--method", method, "--ratio", "0.4"]
    words += ["--allocation", allocation]
    words += [word for option, name in asked.items() for word in (f"--{option}", name)]
    assert main(words) == 0
    text, story = capsys.readouterr()
    assert story == ""
    plan = PrunePlan.load(out)
    assert plan == moeprune.plan(path, method=method, ratio=0.4, allocation=allocation, **asked)
    if method != "auto":  # which says what it chose
        assert plan.method == method
        assert plan.criterion == next(iter(asked.values()), METHODS[method].criterion)
    assert f"{plan.method} ({plan.criterion}, {allocation}): keeps " in text
    signal = plan.details.get("signal")
    weighs = "signal" in asked or plan.method == "best"
    assert bool(signal) == (weighs and plan.criterion != "mass")
    if signal:
        (line,) = [line for line in text.split("\n") if line.startswith("by its signal")]
        assert line == (
            f"by its signal {signal['name']}, {signal['worst_domain']} loses most: "
            f"{signal['worst_domain_loss']:.2%}"
        )
    for domain, loss in plan.domain_loss.items():
        (cells,) = [line.split() for line in text.split("\n") if line.startswith(f"  {domain} ")]
        assert cells[1:] == [
            f"{loss:.2%}",
            *([f"{signal['domain_loss'][domain]:.2%}"] if signal else []),
            f"{plan.predicted[domain]:+.4g}",
        ]
    json.loads(out.read_text())

"""moeprune.plan: from a stats file to plan.json."""

import hashlib
import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import synthetic

import moeprune
from moeprune.core.methods import FROM_STATS
from moeprune.core.plan import PrunePlan
from moeprune.core.stats import CalibrationStats
from moeprune.errors import MoePruneError, OutputError, StatsError, UsageError

MODEL = synthetic.facts([8, 8, 8], layer_ids=[1, 2, 5])


@pytest.fixture(scope="module")
def stats():
    return synthetic.stats(MODEL, tokens_F=(12, 9, 10, 11), seed=2, loss=True)


@pytest.fixture(scope="module")
def stats_file(stats, tmp_path_factory):
    path = tmp_path_factory.mktemp("stats") / "stats.safetensors"
    stats.save(path)
    return path


@pytest.mark.parametrize("method", FROM_STATS)
@pytest.mark.parametrize("allocation", ["uniform", "global"])
def test_two_runs_write_the_same_bytes(method, allocation, stats_file, tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    plans = [
        moeprune.plan(stats_file, output=path, method=method, ratio=0.25, allocation=allocation)
        for path in paths
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes() == plans[0].to_bytes()
    loaded = PrunePlan.load(paths[0])
    assert loaded == plans[0]
    assert loaded.num_removed == 6
    assert loaded.uniform_count == 6 or allocation == "global"
    assert loaded.stats_sha256 == hashlib.sha256(stats_file.read_bytes()).hexdigest()
    assert loaded.check_against(MODEL) is loaded


@pytest.mark.parametrize("method", FROM_STATS)
@pytest.mark.parametrize("allocation", ["uniform", "global"])
def test_losses_are_what_the_stats_say(method, allocation, stats):
    plan = moeprune.plan(stats, method=method, ratio=0.4, allocation=allocation)
    assert plan.stats_sha256 is None
    for domain in stats.domains:
        gone = whole = 0.0
        for row, removed in enumerate(plan.removed):
            mass_E = domain.arrays["prob_sum"].sum(axis=0)[row]
            gone += mass_E[list(removed)].sum() / mass_E.sum()
            whole += 1
        assert plan.domain_loss[domain.name] == pytest.approx(gone / whole, abs=1e-11)
    assert plan.worst_domain_loss == max(plan.domain_loss.values())
    assert plan.domain_loss[plan.worst_domain] == plan.worst_domain_loss
    assert 0 < plan.lower_bound <= plan.worst_domain_loss


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("allocation", ["uniform", "global"])
def test_mesa_is_never_worse_than_rm(seed, allocation):
    stats = synthetic.stats(MODEL, seed=seed)
    ranked, found = (
        moeprune.plan(stats, method=method, ratio=0.4, allocation=allocation)
        for method in ("rm-uniform", "mesa")
    )
    assert found.worst_domain_loss <= ranked.worst_domain_loss


def test_rm_uniform_removes_the_lowest_mean_share(stats):
    plan = moeprune.plan(stats, method="rm-uniform", keep=5)
    for row, removed in enumerate(plan.removed):
        share_E = np.mean(
            [
                domain.arrays["prob_sum"].sum(axis=0)[row] / domain.arrays["tokens"][:, row].sum()
                for domain in stats.domains
            ],
            axis=0,
        )
        assert set(removed) == set(np.argsort(share_E)[:3].tolist())


def test_reap_removes_the_lowest_reap():
    one = synthetic.stats(MODEL, domains=["only"], seed=9)
    plan = moeprune.plan(one, method="reap", keep=6)
    arrays = one.domains[0].arrays
    with np.errstate(invalid="ignore"):
        reap_LE = arrays["gate_norm_sum"].sum(axis=0) / arrays["count"].sum(axis=0)
    reap_LE = np.nan_to_num(reap_LE)
    for row, removed in enumerate(plan.removed):
        assert set(removed) == set(np.argsort(reap_LE[row], kind="stable")[:2].tolist())


def test_a_domain_weight_turns_the_plan(stats):
    heavy = moeprune.plan(stats, method="rm-uniform", keep=5, domain_weights={"math": 1e9})
    alone = moeprune.plan(replace(stats, domains=stats.domains[:1]), method="rm-uniform", keep=5)
    assert heavy.keep == alone.keep
    assert heavy.options["domain_weights"] == {"math": 1e9}
    assert heavy.keep != moeprune.plan(stats, method="rm-uniform", keep=5).keep
    assert moeprune.plan(stats, keep=5, domain_weights="tokens").options["domain_weights"] == (
        "tokens"
    )


@pytest.mark.parametrize("experts", [(8, 8, 8), (4, 12, 6)])
def test_stability_is_the_overlap_of_half_plans(experts):
    """Each half made into stats of its own and planned by itself."""
    stats = synthetic.stats(synthetic.facts(experts), tokens_F=(12, 9, 10, 11), seed=2)
    plan = moeprune.plan(stats, method="mesa", ratio=0.4, allocation="global")

    def half(folds):
        domains = []
        for domain in stats.domains:
            arrays = {name: array.copy() for name, array in domain.arrays.items()}
            for fold in set(range(4)) - set(folds):
                for array in arrays.values():
                    array[fold] = 0
            domains.append(replace(domain, arrays=arrays))
        made = moeprune.plan(
            replace(stats, domains=tuple(domains)), method="mesa", ratio=0.4, allocation="global"
        )
        return {(row, e) for row, removed in enumerate(made.removed) for e in removed}

    overlaps = []
    for a, b in (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))):
        one, other = half(a), half(b)
        overlaps.append(len(one & other) / len(one | other))
    assert plan.stability["splits"] == pytest.approx(overlaps)
    assert plan.stability["jaccard"] == pytest.approx(sum(overlaps) / 3)


@pytest.mark.parametrize(
    ("tokens_F", "missing"),
    [((5, 0, 0, 0), [0, 1, 2]), ((5, 5, 0, 0), [0]), ((5, 5, 5, 0), []), ((0, 9, 0, 9), [1])],
)
def test_stability_is_null_without_text(tokens_F, missing):
    stats = synthetic.stats(MODEL, tokens_F=tokens_F)
    plan = moeprune.plan(stats, ratio=0.25)
    splits = plan.stability["splits"]
    assert [index for index, overlap in enumerate(splits) if overlap is None] == missing
    assert (plan.stability["jaccard"] is None) == (len(missing) == 3)


def test_size(stats):
    plan = moeprune.plan(stats, ratio=0.25)
    assert plan.size == {
        "bytes_before": MODEL.total_bytes,
        "bytes_after": MODEL.total_bytes - 6 * 100,
    }
    ragged = synthetic.stats(replace(MODEL, expert_bytes=(100, 10, 1)))
    plan = moeprune.plan(ragged, ratio=0.4, allocation="global")
    freed = sum(
        len(removed) * size for removed, size in zip(plan.removed, (100, 10, 1), strict=True)
    )
    assert plan.size["bytes_after"] == MODEL.total_bytes - freed


def test_options_say_what_was_asked(stats):
    assert moeprune.plan(stats, method="mesa", ratio=0.25).options == {
        "ratio": 0.25,
        "multiple_of": 1,
        "steps": 20,
        "boost": 0.15,
        "decay": "linear",
    }
    assert moeprune.plan(stats, method="random", keep=4, seed=3, multiple_of=2).options == {
        "keep": 4,
        "multiple_of": 2,
        "seed": 3,
    }
    assert moeprune.plan(stats, method="reap", keep=4).options == {"keep": 4, "multiple_of": 1}


def test_another_criterion_is_used_and_named(stats):
    plan = moeprune.plan(stats, method="reap", criterion="mass", keep=5)
    assert plan.criterion == "mass"
    assert plan.keep == moeprune.plan(stats, method="rm-uniform", keep=5).keep


def test_random_follows_its_seed(stats):
    keeps = [moeprune.plan(stats, method="random", keep=4, seed=seed).keep for seed in range(4)]
    assert len(set(keeps)) == 4
    assert keeps[0] == moeprune.plan(stats, method="random", keep=4).keep


def test_mesa_warns_outside_its_regime():
    standard = synthetic.stats(MODEL, seed=1, skew=3.0)
    mesa = moeprune.plan(standard, method="mesa", ratio=0.25)
    assert mesa.routing["regime"] == "standard"
    warnings = mesa.warnings
    assert any("--method reap" in warning for warning in warnings)
    assert not any(
        "mesa" in warning for warning in moeprune.plan(standard, method="reap", ratio=0.25).warnings
    )
    for domain in standard.domains:
        domain.arrays["entropy_sum"][:] = domain.arrays["tokens"] * 2.9
    flat = moeprune.plan(standard, method="mesa", ratio=0.25)
    assert flat.routing["regime"] == "over-dispersed"
    assert not any("mesa" in warning for warning in flat.warnings)


def test_missing_shards_warn():
    stats = synthetic.stats(domains=["a"])
    assert not any("shard" in warning for warning in moeprune.plan(stats, ratio=0.25).warnings)
    part = replace(stats, domains=(replace(stats.domains[0], shards=((1, 2),)),))
    (line,) = [w for w in moeprune.plan(part, ratio=0.25).warnings if "shard" in w]
    assert "domain a only shard 1/2" in line


def test_unseen_experts_warn():
    stats = synthetic.stats(synthetic.facts([64], top_k=1), tokens_F=(2, 1, 1, 1))
    (line,) = [w for w in moeprune.plan(stats, ratio=0.25).warnings if "saw no token" in w]
    assert "of 64 experts" in line


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "give one of --ratio, --keep"),
        ({"method": "mesaa", "ratio": 0.5}, "Did you mean 'mesa'"),
        ({"method": "reap", "criterion": "mas", "ratio": 0.5}, "Did you mean 'mass'"),
        ({"method": "mesa", "criterion": "reap", "ratio": 0.5}, "--criterion reap"),
        ({"method": "reap", "steps": 5, "ratio": 0.5}, "Leave --steps out"),
        ({"method": "rm-uniform", "boost": 0.1, "ratio": 0.5}, "Leave --boost out"),
        ({"method": "random", "decay": "linear", "ratio": 0.5}, "Leave --decay out"),
        ({"method": "mesa", "seed": 4, "ratio": 0.5}, "Leave --seed out"),
        ({"method": "reap", "seed": 0, "ratio": 0.5}, "Leave --seed out"),
        ({"allocation": "globe", "ratio": 0.5}, "Did you mean 'global'"),
        ({"ratio": 0.5, "domain_weights": {"maths": 2}}, "no domain 'maths'"),
        ({"ratio": 0.9}, "Use --ratio 0.87 or less, or --keep 2 or more"),
        ({"ratio": 0.01}, "Use --ratio 0.13 or more"),
    ],
)
def test_refusals(asked, says, stats, tmp_path):
    with pytest.raises(UsageError) as error:
        moeprune.plan(stats, output=tmp_path / "plan.json", **asked)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_the_stats_are_never_overwritten(stats_file):
    before = stats_file.read_bytes()
    with pytest.raises(UsageError, match="the stats file itself"):
        moeprune.plan(stats_file, output=stats_file, ratio=0.25)
    assert stats_file.read_bytes() == before


def test_bad_paths(stats_file, tmp_path):
    with pytest.raises(StatsError, match="does not exist"):
        moeprune.plan(tmp_path / "none.safetensors", ratio=0.25)
    with pytest.raises(OutputError, match="does not exist"):
        moeprune.plan(stats_file, output=tmp_path / "no" / "plan.json", ratio=0.25)


def test_a_domain_without_text(stats):
    empty = replace(
        stats.domains[0],
        name="empty",
        arrays={name: np.zeros_like(array) for name, array in stats.domains[0].arrays.items()},
    )
    with pytest.raises(StatsError, match="domain 'empty' has no token"):
        moeprune.plan(replace(stats, domains=(*stats.domains, empty)), ratio=0.25)


GROUPED = synthetic.facts([16, 16], top_k=4, groups=4, top_groups=2)
SHAPES = {
    "k = E in one layer": (synthetic.facts([2, 8]), {"keep": 2}),
    "one layer": (synthetic.facts([8]), {"ratio": 0.5}),
    "k = 1": (synthetic.facts([4, 4], top_k=1), {"keep": 2}),
    "odd": (synthetic.facts([7, 7]), {"ratio": 0.5}),
    "groups": (GROUPED, {"ratio": 0.5}),
    "unicode": (replace(GROUPED, name="组织/模型"), {"ratio": 0.5}),
}


@pytest.mark.parametrize("method", FROM_STATS)
@pytest.mark.parametrize("allocation", ["uniform", "global"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_plan_is_one_that_loads(method, allocation, shape, tmp_path):
    model, asked = SHAPES[shape]
    stats = synthetic.stats(model, domains=["数学", "prose"], tokens_F=(2, 2, 1, 1), loss=True)
    path = tmp_path / "plan.json"
    made = moeprune.plan(stats, method=method, allocation=allocation, output=path, **asked)
    assert PrunePlan.load(path) == made


@pytest.mark.parametrize("top_k", [1, 2])
def test_nothing_to_remove(top_k):
    stats = synthetic.stats(synthetic.facts([top_k] * 2, top_k=top_k), domains=["a"])
    with pytest.raises(MoePruneError, match="nothing can leave"):
        moeprune.plan(stats, ratio=0.5)


def test_permuting_domains_changes_no_uniform_rank(stats):
    keeps = {
        moeprune.plan(replace(stats, domains=tuple(order)), method="rm-uniform", ratio=0.25).keep
        for order in itertools.permutations(stats.domains)
    }
    assert len(keeps) == 1


def test_planning_imports_no_torch(stats_file, tmp_path):
    code = (
        "import sys, moeprune\n"
        f"moeprune.plan({str(stats_file)!r}, ratio=0.25, output={str(tmp_path / 'p.json')!r})\n"
        "assert not {'torch', 'transformers', 'click'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert isinstance(CalibrationStats.load(stats_file), CalibrationStats)

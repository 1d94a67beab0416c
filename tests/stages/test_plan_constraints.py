"""moeprune.plan with constraints, and moeprune.plans, from stats to files."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic

import moeprune
from moeprune.core.methods import FROM_STATS
from moeprune.core.plan import PrunePlan
from moeprune.errors import OutputError, UsageError
from moeprune.stages.plans import paths_for

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
def test_what_must_stay_stays_and_is_recorded(method, allocation, stats_file, tmp_path):
    asked = {
        "method": method,
        "allocation": allocation,
        "ratio": 0.5,
        "keep_layers": [-1],
        "must_keep": {"1": [0, 1], "2": [7]},
    }
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        made = moeprune.plan(stats_file, output=path, **asked)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert PrunePlan.load(paths[0]) == made
    assert made.keep[2] == tuple(range(8))
    assert {0, 1} <= set(made.keep[0]) and 7 in made.keep[1]
    assert made.num_removed == 8
    assert made.options["keep_layers"] == [5]
    assert made.options["must_keep"] == {"1": [0, 1], "2": [7]}
    assert any("different numbers of experts" in warning for warning in made.warnings)


@pytest.mark.parametrize("method", ["mesa", "reap"])
def test_counts_of_single_layers(method, stats):
    made = moeprune.plan(
        stats, method=method, ratio=0.25, allocation="global", layer_keep={2: 3, -1: 8}
    )
    assert [len(ids) for ids in made.keep] == [6, 3, 8]
    assert made.options["layer_keep"] == {"2": 3, "5": 8}


def test_a_target_refuses_different_counts(stats):
    with pytest.raises(UsageError, match="--target vllm reads one expert count"):
        moeprune.plan(stats, ratio=0.25, keep_layers=[1], target="vllm")
    allowed = moeprune.plan(stats, ratio=0.25, keep_layers=[1], target="transformers")
    assert sum("different numbers" in warning for warning in allowed.warnings) == 1


def test_super_experts_stay_and_are_reported(stats):
    model = synthetic.facts([64] * 4, top_k=2)
    made = synthetic.stats(model, seed=1)
    for domain in made.domains:
        domain.arrays["norm_max"][:] = 1
        domain.arrays["gate_norm_sum"][:, 1, 40] = 0  # and so the first to leave by REAP
    made.domains[0].arrays["norm_max"][3, 1, 40] = 99
    plain = moeprune.plan(made, method="reap", ratio=0.25)
    assert 40 in plain.removed[1]
    kept = moeprune.plan(made, method="reap", ratio=0.25, protect_super_experts=True)
    assert 40 in kept.keep[1]
    assert kept.details["super_experts"] == {"1": [40]}
    assert kept.options["protect_super_experts"] is True
    assert "super_experts" not in plain.details


@pytest.mark.parametrize("method", FROM_STATS)
@pytest.mark.parametrize("allocation", ["uniform", "global"])
@pytest.mark.parametrize("sizes", [(100, 100, 100), (300, 20, 100)])
def test_the_largest_that_fits(method, allocation, sizes, stats):
    model = replace(MODEL, expert_bytes=sizes, total_bytes=10_000)
    made = moeprune.plan(
        replace(stats, model=model), method=method, allocation=allocation, max_bytes=9_280
    )
    assert made.size["bytes_after"] <= 9_280
    assert made.options["max_bytes"] == 9_280 and "ratio" not in made.options
    if sizes[0] == sizes[1]:
        assert made.num_removed == (9 if allocation == "uniform" else 8)
    elif allocation == "uniform":
        assert made.num_removed == 6


def test_sizes_in_words(stats):
    model = replace(MODEL, expert_bytes=(10**6,) * 3, total_bytes=30 * 10**6)
    sized = replace(stats, model=model)
    assert moeprune.plan(sized, max_bytes="27MB").num_removed == 3
    with pytest.raises(UsageError, match="--max-bytes 'much' is not a size"):
        moeprune.plan(sized, max_bytes="much")


def test_plans_equal_single_plans(stats_file, tmp_path):
    ratios = [0.125, 0.25, 0.5]
    made = moeprune.plans(stats_file, ratios=ratios, output=tmp_path / "plans", method="reap")
    assert sorted(path.name for path in (tmp_path / "plans").iterdir()) == [
        f"plan-{ratio}.json" for ratio in ratios
    ]
    sha256 = hashlib.sha256(stats_file.read_bytes()).hexdigest()
    for ratio, each in zip(ratios, made, strict=True):
        path = tmp_path / "single.json"
        assert moeprune.plan(stats_file, ratio=ratio, output=path, method="reap") == each
        assert (tmp_path / "plans" / f"plan-{ratio}.json").read_bytes() == path.read_bytes()
        assert each.stats_sha256 == sha256


def test_stats_are_read_once(stats_file, monkeypatch):
    from moeprune.core.stats import CalibrationStats

    real, calls = CalibrationStats.load, []

    def load(path):
        calls.append(path)
        return real(path)

    monkeypatch.setattr(CalibrationStats, "load", load)
    moeprune.plans(stats_file, ratios=[0.25, 0.5], method="reap")
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"ratios": [0.25, 0.99]}, "--ratio 0.99 removes too many"),
        ({"ratios": [0.25, 0.25]}, "each once"),
        ({"ratios": []}, "at least one"),
        ({"ratios": [0.25, 0.5], "keep": 4}, "--keep 4 does not go with several ratios"),
        ({"ratios": [0.25, 0.5], "max_bytes": 9}, "--max-bytes 9 does not go"),
        ({"ratios": [0.25, 0.5], "output": "one.json"}, "put {ratio} into its name"),
    ],
)
def test_nothing_is_written_if_one_fails(asked, says, stats_file, tmp_path):
    output = tmp_path / asked.pop("output", "plans")
    with pytest.raises(UsageError) as refusal:
        moeprune.plans(stats_file, output=output, method="reap", **asked)
    assert says in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_if_one_cannot_be(stats_file, tmp_path):
    """The second name is a folder."""
    (tmp_path / "plan-0.5.json").mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        moeprune.plans(
            stats_file, ratios=[0.25, 0.5], output=tmp_path / "plan-{ratio}.json", method="reap"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["plan-0.5.json"]
    with pytest.raises(OutputError, match=r"no does not exist\. Create it"):
        moeprune.plans(stats_file, ratios=[0.25, 0.5], output=tmp_path / "no" / "plans")


def test_the_stats_are_never_overwritten(stats_file, tmp_path):
    source = tmp_path / "plan-0.5.json"
    source.write_bytes(stats_file.read_bytes())
    with pytest.raises(UsageError, match="is the stats file itself"):
        moeprune.plans(source, ratios=[0.25, 0.5], output=tmp_path / "plan-{ratio}.json")
    assert source.read_bytes() == stats_file.read_bytes()


@pytest.mark.parametrize(
    ("output", "ratios", "paths"),
    [
        ("p.json", (0.5,), ["p.json"]),
        ("p.json", (), ["p.json"]),
        ("a/p-{ratio}.json", (0.5,), ["a/p-0.5.json"]),
        ("{ratio}/p.json", (0.125, 0.5), ["0.125/p.json", "0.5/p.json"]),
        ("plans", (0.125, 0.5), ["plans/plan-0.125.json", "plans/plan-0.5.json"]),
    ],
)
def test_names(output, ratios, paths):
    assert paths_for(Path(output), ratios) == tuple(map(Path, paths))


def test_a_place_for_no_ratio():
    with pytest.raises(UsageError, match="stands for --ratio"):
        paths_for(Path("p-{ratio}.json"), ())

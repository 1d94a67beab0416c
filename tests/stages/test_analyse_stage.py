"""moeprune.analyse: the parts fit together, odd models pass, files are what they say."""

import hashlib
import itertools
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import synthetic
from dispersed import drawn
from tiny import tiny_checkpoint

import moeprune
from moeprune.architectures import attention_kinds
from moeprune.cli.analyse_text import analysis_text
from moeprune.cli.main import main
from moeprune.errors import MismatchError, PlanError, StatsError, UsageError
from moeprune.stages.sensitivity import BOOSTS, STEPS

MODEL = synthetic.facts([16] * 3, top_k=2)
PARTS = {
    "schema",
    "model",
    "stats",
    "domains",
    "layers",
    "entropy",
    "mass",
    "routing_profile",
    "divergence",
    "overlap",
    "attention",
    "plans",
    "sensitivity",
    "regime",
}


@pytest.fixture(scope="module")
def stats():
    return drawn(0, model=MODEL, noise=0.05)


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


def test_the_file_is_the_answer_and_the_same_each_time(stats, tmp_path):
    stats.save(tmp_path / "stats.safetensors")
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    made = [moeprune.analyse(tmp_path / "stats.safetensors", output=path) for path in paths]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert json.loads(paths[0].read_text("utf-8")) == made[0]
    assert set(made[0]) == PARTS
    assert made[0]["schema"] == "moeprune.analysis/1"
    want = hashlib.sha256((tmp_path / "stats.safetensors").read_bytes()).hexdigest()
    assert made[0]["stats"] == want
    assert moeprune.analyse(stats)["stats"] is None


def test_plans_are_compared(stats, tmp_path):
    made = {}
    for method in ("mesa", "reap", "rm-uniform"):
        path = tmp_path / f"{method}.json"
        made[str(path)] = moeprune.plan(stats, method=method, ratio=0.25, output=path)
    found = moeprune.analyse(stats, plans=list(made))["plans"]
    assert list(found["plans"]) == list(made)
    for entry, (one, two) in zip(found["pairs"], itertools.combinations(made, 2), strict=True):
        assert entry["plans"] == [one, two]
        gone = [
            {(row, e) for row, ids in enumerate(made[name].removed) for e in ids}
            for name in (one, two)
        ]
        assert entry["jaccard"] == pytest.approx(
            len(gone[0] & gone[1]) / len(gone[0] | gone[1]), abs=1e-9
        )
        assert entry["chance"] == pytest.approx(1 / 7, abs=1e-9)  # 4 of 16: shares 1 of 7
    in_memory = moeprune.analyse(stats, plans=list(made.values()))["plans"]
    assert list(in_memory["plans"]) == ["mesa (1)", "reap (2)", "rm-uniform (3)"]
    assert [pair["jaccard"] for pair in in_memory["pairs"]] == [
        pair["jaccard"] for pair in found["pairs"]
    ]


def test_an_edited_plan_states_no_loss(stats, tmp_path, capsys):
    """One expert goes for another by hand: the loss in the file is of the plan before."""
    paths = [tmp_path / "made.json", tmp_path / "edited.json"]
    plan = moeprune.plan(stats, method="reap", ratio=0.25, output=paths[0])
    body = json.loads(paths[0].read_text("utf-8"))
    keep = body["layers"][0]["keep"]
    keep[0:1] = [plan.removed[0][0]]
    body["layers"][0]["keep"] = sorted(keep)
    paths[1].write_text(json.dumps(body))
    found = moeprune.analyse(stats, plans=paths)["plans"]["plans"]
    made, edited = found[str(paths[0])], found[str(paths[1])]
    assert made["worst_domain_loss"] == pytest.approx(plan.worst_domain_loss, abs=1e-9)
    assert (made["edited"], edited["edited"]) == (False, True)
    assert (edited["worst_domain"], edited["worst_domain_loss"]) == (None, None)
    assert edited["removed"] == made["removed"]
    stats.save(tmp_path / "s.safetensors")
    arguments = ["analyse", *map(str, (tmp_path / "s.safetensors", *paths))]
    assert main([*arguments, "-o", str(tmp_path / "a.json")]) == 0
    out = capsys.readouterr().out
    assert out.count("was edited by hand") == 1 and f"{paths[1]} was edited by hand" in out


def test_sensitivity_is_that_of_plans(stats):
    found = moeprune.analyse(stats)["sensitivity"]
    assert (found["ratio"], found["allocation"]) == (0.25, "uniform")

    def removed(**options):
        plan = moeprune.plan(stats, method="mesa", ratio=0.25, **options)
        gone = {(row, e) for row, ids in enumerate(plan.removed) for e in ids}
        return gone, plan.worst_domain_loss

    default, longest = removed()[0], removed(steps=STEPS[-1])[0]
    assert [line["steps"] for line in found["steps"]] == list(STEPS)
    assert [line["boost"] for line in found["boost"]] == list(BOOSTS)
    for name, reference in (("steps", longest), ("boost", default), ("decay", default)):
        for line in found[name]:
            gone, loss = removed(**{name: line[name]})
            assert line["loss"] == pytest.approx(loss, abs=1e-9)
            same = len(gone & reference) / len(gone | reference)
            assert line["jaccard"] == pytest.approx(same, abs=1e-9)
    best = [line["loss"] for line in found["steps"]]
    assert found["steps"][0]["oscillation"] == 0 and best[-1] <= best[0]


def test_volume_is_that_of_plans_from_fewer_folds(stats):
    lines = moeprune.analyse(stats)["sensitivity"]["volume"]
    assert [(line["folds"], line["plans"]) for line in lines] == [(1, 4), (2, 6), (3, 4)]
    whole = {}
    for method in ("mesa", "reap"):
        plan = moeprune.plan(stats, method=method, ratio=0.25)
        whole[method] = ~plan.keep_mask_LE()
    for line in lines:
        same = {"mesa": [], "reap": []}
        for folds in itertools.combinations(range(4), line["folds"]):
            fewer = drawn(0, model=MODEL, noise=0.05)
            for domain in fewer.domains:
                for array in domain.arrays.values():
                    array[[fold for fold in range(4) if fold not in folds]] = 0
            for method in same:
                gone = ~moeprune.plan(fewer, method=method, ratio=0.25).keep_mask_LE()
                same[method].append((gone & whole[method]).sum() / (gone | whole[method]).sum())
        for method, overlaps in same.items():
            assert line[method]["jaccard"] == pytest.approx(np.mean(overlaps), abs=1e-9)
            assert line[method]["jaccard_least"] == pytest.approx(min(overlaps), abs=1e-9)
    assert lines[0]["mesa"]["jaccard"] < lines[2]["mesa"]["jaccard"]  # more text, more of the plan


def test_bands_and_lists_have_the_shape_of_the_model():
    ragged = synthetic.facts([8, 3, 16], top_k=2, layer_ids=[1, 2, 5])
    found = moeprune.analyse(synthetic.stats(ragged, domains=("μαθ", "コード", "a b")))
    assert [layer["layer"] for layer in found["layers"]] == [1, 2, 5]
    for key in ("rank_mass", "expert_mass"):
        assert [len(row) for row in found["mass"][key]] == [8, 3, 16]
    for key in ("top_ranks", "top_experts"):
        band = found["mass"][key]
        for low, mean, high in zip(band["least"], band["mean"], band["most"], strict=True):
            assert low <= mean + 1e-9 <= high + 2e-9
        assert band["least"][-1] == band["most"][-1] == 1
    assert len(found["divergence"]["between"]) == len(found["entropy"]["mean"]) == 3
    assert found["divergence"]["pairs"][0]["domains"] == ["μαθ", "コード"]
    for entry in found["overlap"]:
        assert all(1 <= top <= count for top, count in zip(entry["top"], [8, 3, 16], strict=True))


@pytest.mark.parametrize(
    "stats",
    [
        synthetic.stats(synthetic.facts([8])),
        synthetic.stats(synthetic.facts([2, 2])),  # nothing can leave
        synthetic.stats(synthetic.facts([4, 1], top_k=1)),
        synthetic.stats(synthetic.facts([8, 6, 12]), tokens_F=(3, 0, 0, 0)),
        synthetic.stats(synthetic.facts([8, 8]), domains=("one",)),
        synthetic.stats(synthetic.facts([8, 8]), domains=("one",), tokens_F=(2, 0, 1, 0)),
        synthetic.stats(synthetic.facts([8, 8], groups=2), domains=("[red]", "ü")),
        replace(
            synthetic.stats(synthetic.facts([8, 8])),
            model=replace(synthetic.facts([8, 8]), idle_experts=4, passes=(1, 1)),
        ),
        replace(
            synthetic.stats(synthetic.facts([8, 8], layer_ids=[0, 0])),
            model=replace(synthetic.facts([8, 8], layer_ids=[0, 0]), sets=("", "attention")),
        ),
    ],
    ids=["layer", "two", "one-expert", "no-halves", "domain", "both", "groups", "idle", "sets"],
)
def test_odd_models(stats, tmp_path):
    path = tmp_path / "analysis.json"
    found = moeprune.analyse(stats, output=path)
    assert json.loads(path.read_text("utf-8")) == found
    assert all(math.isfinite(number) for number in numbers(found))
    text = analysis_text(found, path)
    assert "nan" not in text.lower().replace("analysis", "") and "None" not in text


def test_a_model_that_cannot_lose_so_many(tmp_path):
    stats = synthetic.stats(synthetic.facts([4, 4], top_k=3))
    assert moeprune.analyse(stats)["sensitivity"] is not None  # 1 of 4
    assert moeprune.analyse(synthetic.stats(synthetic.facts([2, 2])))["sensitivity"] is None
    with pytest.raises(UsageError, match=r"--ratio 0\.6 removes too many"):
        moeprune.analyse(stats, ratio=0.6)
    assert moeprune.analyse(drawn(0, model=MODEL), ratio=0.5)["sensitivity"]["ratio"] == 0.5


def test_layers_are_grouped_by_attention(stats):
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    stated = replace(stats, provenance={**stats.provenance, "attention": kinds})
    found = moeprune.analyse(stated)
    groups = found["attention"]
    assert {kind: group["layers"] for kind, group in groups.items()} == {
        "full_attention": [1],
        "linear_attention": [0, 2],
    }
    ratios = found["entropy"]["ratio_by_layer"]
    assert groups["full_attention"]["entropy_ratio"] == pytest.approx(ratios[1], abs=1e-9)
    between = found["divergence"]["between"]
    assert groups["linear_attention"]["between"] == pytest.approx(
        (between[0] + between[2]) / 2, abs=1e-9
    )
    assert "full_attention" in analysis_text(found, "x")
    assert moeprune.analyse(stats)["attention"] is None


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({}, None),
        ({"layer_types": ["a", "b", "c", "d"]}, ["b", "d"]),
        ({"text_config": {"layer_types": ["a", "b", "c", "d"]}}, ["b", "d"]),
        ({"layers_block_type": ["a", "b", "c", "d"]}, ["b", "d"]),
        ({"layer_types": ["a", "b"]}, None),  # of another stack
        ({"layer_types": [1, 2, 3, 4]}, None),
        ({"layer_types": "abcd"}, None),
        ({"full_attention_interval": 4}, ["linear_attention", "full_attention"]),
        ({"full_attention_interval": 0}, None),
        ({"full_attention_interval": True}, None),
    ],
)
def test_where_the_config_states_attention(config, kinds):
    assert attention_kinds(config, (1, 3)) == kinds


def test_calibrate_notes_the_attention_of_each_layer(tmp_path):
    folder = tiny_checkpoint("gpt_oss", tmp_path / "model")
    text = tmp_path / "a.txt"
    text.write_text("one two three\n\nfour five six\n")
    stats = moeprune.calibrate(folder, domains={"a": str(text)}, length=16)
    stated = json.loads((folder / "config.json").read_text())["layer_types"]
    assert stats.provenance["attention"] == stated
    assert set(moeprune.analyse(stats)["attention"]) == set(stated)


def test_refusals(stats, tmp_path):
    stats_file = tmp_path / "stats.safetensors"
    stats.save(stats_file)
    other = moeprune.plan(
        synthetic.stats(synthetic.facts([8, 8])), method="reap", ratio=0.25, output=tmp_path / "p"
    )
    with pytest.raises(MismatchError):
        moeprune.analyse(stats_file, plans=[tmp_path / "p"])
    with pytest.raises(MismatchError):
        moeprune.analyse(stats, plans=[other])
    with pytest.raises(PlanError, match="does not exist"):
        moeprune.analyse(stats, plans=[tmp_path / "nowhere.json"])
    with pytest.raises(StatsError, match="does not exist"):
        moeprune.analyse(tmp_path / "nowhere.safetensors")
    own = tmp_path / "own.json"
    moeprune.plan(stats, method="reap", ratio=0.25, output=own)
    with pytest.raises(UsageError, match="named twice"):
        moeprune.analyse(stats, plans=[own, own])
    before = own.read_bytes(), stats_file.read_bytes()
    for output in (own, stats_file):
        with pytest.raises(UsageError, match="would be lost"):
            moeprune.analyse(stats_file, plans=[own], output=output)
    assert before == (own.read_bytes(), stats_file.read_bytes())


def test_command(stats, tmp_path):
    stats.save(tmp_path / "stats.safetensors")
    moeprune.plan(stats, method="reap", ratio=0.25, output=tmp_path / "reap.json")
    shutil.copy(tmp_path / "reap.json", tmp_path / "same.json")
    command = [sys.executable, "-m", "moeprune.cli.main", "analyse", "stats.safetensors"]
    command += ["reap.json", "same.json", "-o", "analysis.json"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "reap.json / same.json" in said.stdout and "100%" in said.stdout
    assert "written to analysis.json" in said.stdout
    as_json = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(as_json.stdout) == json.loads((tmp_path / "analysis.json").read_text())


@pytest.mark.parametrize("tokens_F", [(6, 0, 0, 0), (6, 2, 0, 0), (6, 5, 7, 0)])
def test_folds_that_hold_all_of_the_text_say_nothing_of_volume(tokens_F, tmp_path, capsys):
    """One fold with all of the text gives the same plan, and not because the text was enough."""
    stats = synthetic.stats(tokens_F=tokens_F)
    assert moeprune.analyse(stats)["sensitivity"]["volume"] == []
    stats.save(tmp_path / "stats.safetensors")
    assert main(["analyse", str(tmp_path / "stats.safetensors"), "-o", str(tmp_path / "a")]) == 0
    out = capsys.readouterr().out
    assert "how much text is enough is not known" in out and "of 4 folds" not in out


def test_words_of_one(tmp_path, capsys):
    """One layer, one domain, one expert a token: nothing is compared with itself."""
    model = synthetic.facts([8], top_k=1)
    synthetic.stats(model, domains=("prose",)).save(tmp_path / "stats.safetensors")
    assert main(["analyse", str(tmp_path / "stats.safetensors"), "-o", str(tmp_path / "a")]) == 0
    out = capsys.readouterr().out
    assert "1 MoE layer x 8 experts, top-1; 1 domain\n" in out
    assert "the layer " in out and "middle" not in out
    assert "a token's likeliest expert holds" in out
    assert "one domain: nothing to compare" in out and "worst-off" not in out
    pair = synthetic.stats(synthetic.facts([8, 8]), domains=("prose", "code"))
    pair.save(tmp_path / "stats.safetensors")
    assert main(["analyse", str(tmp_path / "stats.safetensors"), "-o", str(tmp_path / "a")]) == 0
    out = capsys.readouterr().out
    assert "first layer" in out and "last" in out and "middle" not in out and "alike" not in out

"""``plan --method evoesap``: what a search reads, and what is refused before it takes its time."""

import json
from pathlib import Path

import numpy as np
import pytest

import moeprune
from moeprune.cli.main import main
from moeprune.errors import OutputError, UsageError

SMALL = {"generations": 2, "population": 13, "search_samples": 3}
WORDS = ["river", "rises", "in", "mountains", "reaches", "sea", "after", "seven", "days", "rain"]


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    """A model, text, and stats of half of its documents, cut to 32 tokens."""
    folder = tmp_path_factory.mktemp("inputs")
    from tiny import tiny_checkpoint

    model = tiny_checkpoint("qwen3_moe", folder / "model", num_hidden_layers=3)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 40)) for _ in range(12)]
    rows = folder / "math.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    running = folder / "prose.txt"
    running.write_text(" ".join(texts))
    stats = folder / "stats.safetensors"
    sources = {"math": str(rows), "prose": str(running)}
    moeprune.calibrate(model, output=stats, domains=sources, samples=6, length=32)
    return model, sources, stats


def made(setup, text, **more):
    model, _, stats = setup
    asked = {"ratio": 0.4, "model": model, "search_text": text, **SMALL, **more}
    return moeprune.plan(stats, method="evoesap", **asked)


def read(plan, domain):
    return plan.details["search"]["text"][domain]


def test_text_is_told_by_what_it_is_not_by_its_domain(setup):
    """A source that calibration read as math is held out under any name."""
    source = setup[1]["math"]
    one, other = made(setup, {"math": source}), made(setup, {"else": source})
    assert read(other, "else") == read(one, "math")
    assert read(other, "else")["held_out"] is True
    model, _, _ = setup
    whole = moeprune.calibrate(model, domains={"math": source}, length=32)
    plan = made((model, None, whole), {"else": source})
    assert read(plan, "else")["held_out"] is False
    assert any("text that calibration used (domain else)" in line for line in plan.warnings)


def test_documents_may_be_longer_than_calibrations(setup):
    source = setup[1]["math"]
    texts = [
        json.loads(line)["text"] for line in Path(source).read_text().splitlines()
    ]  # a token a byte
    drawn = np.random.RandomState(0).permutation(12)[6:9]
    for length in (20, 32, 100):
        found = read(made(setup, {"math": source}, search_length=length), "math")
        assert found["tokens"] == sum(min(length, len(texts[row])) for row in drawn)
        assert found["held_out"] is True


def test_pieces_of_a_running_text_are_those_of_calibration(setup):
    source = setup[1]["prose"]
    assert read(made(setup, {"prose": source}, search_length=20), "prose")["tokens"] == 60
    with pytest.raises(UsageError, match=r"--search-length 100.*of 32 tokens.*Use 32 or less"):
        made(setup, {"prose": source}, search_length=100)


def never(*_):
    raise AssertionError("the search began")


@pytest.mark.parametrize("target", ["vllm", "any"])
def test_a_runtime_of_one_count_is_refused_before_the_search(target, setup):
    with pytest.raises(UsageError, match=r"--target \S+ reads one .* a search .* --method reap"):
        made(setup, setup[1], target=target, on_progress=never)
    assert made(setup, setup[1], target="transformers").allocation == "evolved"
    # Where nothing can move between layers, the plan is the uniform one.
    fixed = made(setup, setup[1], target=target, layer_keep={0: 8}, ratio=0.34)
    assert {len(ids) for ids in fixed.keep} == {8}
    assert made(setup, None, target=target, generations=0).num_removed == 8


@pytest.mark.parametrize("several", [False, True])
def test_where_no_plan_can_lie_is_seen_before_the_search(several, setup, tmp_path):
    def tried(output):
        words = {"model": setup[0], "search_text": setup[1], "on_progress": never, **SMALL}
        if several:
            words |= {"ratios": [0.2, 0.4]}
            moeprune.plans(setup[2], method="evoesap", output=output, **words)
        else:
            moeprune.plan(setup[2], method="evoesap", ratio=0.4, output=output, **words)

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "plan-0.2.json").mkdir()
    with pytest.raises(OutputError, match=r"it is a folder|File exists"):
        tried(tmp_path / "folder")
    with pytest.raises(OutputError, match=r"does not exist\. Create it"):
        tried(tmp_path / "none" / "plans")
    with pytest.raises(OutputError, match="too long"):
        tried(tmp_path / ("x" * 245 + ("{ratio}.json" if several else ".json")))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_plan_takes_the_place_of_nothing_that_is_read(setup, tmp_path, capsys):
    model, sources, stats = setup
    must = tmp_path / "must.json"
    must.write_text('{"0": [1]}')
    words = ["plan", str(stats), "--method", "evoesap", "--ratio", "0.4", "--model", str(model)]
    words += ["--must-keep", str(must), "--generations", "1", "--search-samples", "1"]
    words += ["--search-text", f"math={sources['math']}"]
    for path in (stats, must, sources["math"], model / "config.json", model / "model.safetensors"):
        before = Path(path).read_bytes()
        assert main([*words, "-o", str(path)]) == 2
        assert str(path) in capsys.readouterr().err
        assert Path(path).read_bytes() == before
    for _ in range(2):  # an earlier plan beside the model may be replaced
        assert main([*words, "-o", str(model / "plan.json")]) == 0
    (model / "plan.json").unlink()

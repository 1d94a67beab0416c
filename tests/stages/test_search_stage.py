"""``plan --method evoesap`` on real tiny models: shortcuts, kills, text, refusals."""

import json
import signal
import time
from pathlib import Path

import forked
import numpy as np
import pytest

import moeprune
from moeprune.cli.main import main
from moeprune.core.plan import PrunePlan
from moeprune.errors import DomainError, MismatchError, UsageError
from moeprune.evaluate.esap import Esap
from moeprune.stages.search import search_file

SMALL = {"generations": 4, "population": 14, "elites": 3, "search_samples": 3, "search_length": 24}
DOMAINS = ("math", "prose")
WORDS = ["river", "rises", "in", "mountains", "reaches", "sea", "after", "seven", "days", "rain"]


def write_text(path: Path, documents: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    rows = [{"text": " ".join(rng.choice(WORDS, 40))} for _ in range(documents)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def setup(tiny, tmp_path_factory):
    """A model, the sources of its calibration, and its stats: 6 of 12 documents were measured."""
    folder = tmp_path_factory.mktemp("search")
    from tiny import add_tokenizer, tiny_checkpoint

    model = tiny_checkpoint("qwen3_moe", folder / "model", num_hidden_layers=5)
    add_tokenizer(model)
    text = {
        name: write_text(folder / f"{name}.jsonl", 12, seed) for seed, name in enumerate(DOMAINS)
    }
    sources = {name: str(path) for name, path in text.items()}
    stats = folder / "stats.safetensors"
    moeprune.calibrate(model, output=stats, domains=sources, samples=6, length=64)
    return model, sources, stats


def made(setup, output=None, **more):
    model, sources, stats = setup
    asked = {"ratio": 0.4, "model": model, "search_text": sources, **SMALL, **more}
    return moeprune.plan(stats, output=output, method="evoesap", **asked)


def test_the_plan_says_what_it_did(setup, tmp_path):
    output = tmp_path / "plan.json"
    plan = made(setup, output)
    assert PrunePlan.load(output) == plan
    assert not search_file(output).exists()
    uniform = moeprune.plan(setup[2], method="reap", ratio=0.4)
    assert plan.num_removed == uniform.num_removed
    assert plan.allocation == "evolved" and plan.method == "evoesap"
    search = plan.details["search"]
    assert search["generations"] == 4 and search["candidates"] == 14 + 3 * 11
    assert search["fitness"]["best"] >= search["fitness"]["uniform"]
    assert len(search["fitness"]["patterns"]) == 12
    for which in ("best", "uniform"):
        each = [values[which] for values in search["domains"].values()]
        assert np.isclose(np.mean(each), search["fitness"][which])
    assert set(search["text"]) == set(DOMAINS)
    for name, text in search["text"].items():
        assert text["source"] == f"{name}.jsonl" and text["documents"] == 3
        assert text["held_out"] is True and text["tokens"] > 0
    assert not any("calibration used" in warning for warning in plan.warnings)
    assert plan.options["objective"] == "mean" and plan.options["seed"] == 0
    assert made(setup, tmp_path / "again.json").to_bytes() == output.read_bytes()
    assert (tmp_path / "again.json").read_bytes() == output.read_bytes()


def test_shortcuts_change_nothing_but_the_layers_that_run(setup, monkeypatch):
    """Against an evaluator that runs all layers and judges every genome in full."""
    ran = []  # the evaluators of the two searches
    init, score = Esap.__init__, Esap.score

    def noted(self, model, **how):
        ran.append(self)
        init(self, model, **how)

    def without_reuse(self, model, **how):
        ran.append(self)
        init(self, model, **how, reuse=False)

    monkeypatch.setattr(Esap, "__init__", noted)
    plan = made(setup)

    def in_full(self, counts, **how):
        return score(self, counts)

    monkeypatch.setattr(Esap, "__init__", without_reuse)
    monkeypatch.setattr(Esap, "score", in_full)
    slow = made(setup)
    quick, naive = plan.details["search"], slow.details["search"]
    assert slow.keep == plan.keep
    for key in ("fitness", "history", "domains"):
        assert quick[key] == naive[key]
    assert naive["stopped_early"] == 0
    # Even the slow one judges no plan twice.
    assert ran[0].layer_forwards_naive == ran[1].layer_forwards_naive == ran[1].layer_forwards
    share = naive["evaluations"] / naive["candidates"]
    assert ran[0].layer_forwards < 0.75 * ran[1].layer_forwards / share


class Killed(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("moments", [[1], [16], [20, 30, 40], [47]])
def test_killed_and_resumed(moments, setup, tmp_path):
    whole, output = tmp_path / "whole.json", tmp_path / "plan.json"
    made(setup, whole)

    def dies(report, moment):
        if report.unit == "plans" and report.done >= moment:
            raise Killed

    for moment in moments:
        with pytest.raises(Killed):
            made(setup, output, on_progress=lambda report, at=moment: dies(report, at))
        assert not output.exists()
        assert search_file(output).exists() == (moment >= 14)
    made(setup, output)
    assert output.read_bytes() == whole.read_bytes()
    assert not search_file(output).exists()


def test_sigkill(setup, tmp_path):
    model, sources, stats = setup
    words = ["-m", "moeprune", "plan", str(stats), "--method", "evoesap"]
    words += ["--ratio", "0.4", "--model", str(model), "--generations", "12"]
    words += ["--population", "14", "--search-samples", "3", "--search-length", "24"]
    words += [word for name in DOMAINS for word in ("--search-text", f"{name}={sources[name]}")]
    whole, output = tmp_path / "whole.json", tmp_path / "plan.json"
    running = forked.start([*words, "-o", str(output)])
    deadline = time.monotonic() + 240
    while not search_file(output).exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(float(np.random.default_rng().random()) / 4)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert not output.exists()
    assert main([*words[2:], "-o", str(output)]) == 0
    assert main([*words[2:], "-o", str(whole)]) == 0
    assert output.read_bytes() == whole.read_bytes()


def test_no_generation_is_the_uniform_plan_and_needs_no_model(setup):
    stats = setup[2]
    plan = moeprune.plan(stats, method="evoesap", ratio=0.4, generations=0)
    uniform = moeprune.plan(stats, method="reap", ratio=0.4)
    assert plan.keep == uniform.keep
    assert plan.stability == uniform.stability
    assert "search" not in plan.details


def test_the_worst_domain_is_another_objective(setup):
    plan = made(setup, objective="worst-domain")
    search = plan.details["search"]
    assert search["fitness"]["best"] == min(v["best"] for v in search["domains"].values())


def test_constraints_hold(setup):
    plan = made(setup, keep_layers=[0], layer_keep={2: 6}, multiple_of=2, ratio=0.3)
    kept = dict(zip([0, 2, 3, 4], [len(ids) for ids in plan.keep], strict=True))
    assert kept[0] == 12 and kept[2] == 6
    assert all(count % 2 == 0 for count in kept.values())


def test_text_that_calibration_used_is_said(setup, tmp_path):
    model, sources, _ = setup
    stats = moeprune.calibrate(model, domains=sources, length=64)
    plan = made((model, sources, stats))
    (line,) = [line for line in plan.warnings if "text that calibration used" in line]
    assert "domain math, prose" in line
    assert not any(text["held_out"] for text in plan.details["search"]["text"].values())
    other = write_text(tmp_path / "other.jsonl", 3, 9)
    plan = made((model, {"math": str(other)}, stats))
    assert list(plan.details["search"]["text"]) == ["math"]
    assert plan.details["search"]["text"]["math"]["held_out"] is True


def test_what_calibration_left_of_the_built_in_domains(setup):
    model = setup[0]
    stats = moeprune.calibrate(model, domains=["math=builtin:math"], samples=4, length=16)
    plan = made((model, None, stats), generations=1)
    assert plan.details["search"]["text"]["math"]["documents"] == 3
    whole = moeprune.calibrate(model, domains=["math=builtin:math"], length=16)
    with pytest.raises(DomainError, match=r"drew all \d+ documents of domain 'math'.*--samples"):
        made((model, None, whole))


def test_refusals(setup, tmp_path):
    model, sources, stats = setup
    with pytest.raises(UsageError, match="--model MODEL"):
        moeprune.plan(stats, method="evoesap", ratio=0.4)
    with pytest.raises(DomainError, match="--search-text math=SOURCE"):
        made((model, None, stats))
    with pytest.raises(UsageError, match="--allocation global does not go with --method evoesap"):
        made(setup, allocation="global")
    with pytest.raises(UsageError, match="--top-p does not go with --method reap"):
        moeprune.plan(stats, method="reap", ratio=0.4, top_p=0.9)
    with pytest.raises(UsageError, match="--model does not go with --method mesa"):
        moeprune.plan(stats, method="mesa", ratio=0.4, model=model)
    with pytest.raises(UsageError, match="--steps 3 does not go with --method evoesap"):
        made(setup, steps=3)
    with pytest.raises(UsageError, match="no objective named 'median'"):
        made(setup, objective="median")
    for name, value in {"top_p": 1.5, "cache": "much", "elites": 14, "population": 2}.items():
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}"):
            made(setup, **{name: value})
    from tiny import tiny_checkpoint

    other = tiny_checkpoint("qwen3_moe", tmp_path / "other", seed=5, num_hidden_layers=5)
    with pytest.raises(MismatchError, match="the stats are of"):
        made((other, sources, stats))
    output = tmp_path / "plan.json"
    search_file(output).write_text(json.dumps({"schema": "moeprune.search/1", "fingerprint": "x"}))
    with pytest.raises(MismatchError, match="other stats, text, model or options"):
        made(setup, output)
    assert not output.exists()

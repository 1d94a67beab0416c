"""The demo, whole: the embedded model is worth showing, and every artefact is left behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binomtest

import moeprune
from moeprune.cli.demo_text import demo_text
from moeprune.core.plan import PrunePlan
from moeprune.core.progress import Progress
from moeprune.core.run import Run
from moeprune.errors import OutputError
from moeprune.observe.load import load_causal_lm, load_tokenizer
from moeprune.packaged import calibration_folder
from moeprune.stages.demo import METHODS, RATIOS
from moeprune.stages.demo_result import DemoResult


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    return moeprune.demo(tmp_path_factory.mktemp("demo") / "out")


def test_the_model_answers_and_is_over_dispersed(result: DemoResult) -> None:
    unpruned = result.variants[0]
    assert unpruned.name == "unpruned" and len(unpruned.accuracy) == 6
    assert min(unpruned.accuracy.values()) >= 0.85
    assert result.entropy_ratio > 0.85 and result.regime == "over-dispersed"
    assert all(count >= 100 for count in result.questions.values())


def test_removing_half_at_random_clearly_hurts(result: DemoResult) -> None:
    by_name = {(v.name, v.ratio): v for v in result.variants}
    assert len(by_name) == 1 + len(METHODS) * len(RATIOS)
    half = by_name["random", 0.5]
    assert half.mean < result.variants[0].mean - 0.3
    assert half.mean < by_name["random", 0.25].mean


def test_mesa_loses_no_more_mass_than_router_mass(result: DemoResult) -> None:
    by_name = {(v.name, v.ratio): v for v in result.variants}
    for ratio in RATIOS:
        mesa, mass = by_name["mesa", ratio], by_name["rm-uniform", ratio]
        assert max(mesa.domain_loss.values()) <= max(mass.domain_loss.values())


def test_every_artefact_is_left(result: DemoResult) -> None:
    out = result.output
    assert (out / "stats.safetensors").is_file()
    assert json.loads((out / "results.json").read_text()) == result.to_json()
    for ratio in RATIOS:
        for method in METHODS:
            plan = PrunePlan.load(out / "plans" / f"{method}-{ratio:g}.json")
            config = json.loads(
                (out / "exports" / f"{method}-{ratio:g}" / "config.json").read_text()
            )
            # The embedded model spells its expert count twice; both must follow.
            assert config["num_experts"] == config["num_local_experts"] == plan.uniform_count
    names = ["unpruned", *(f"{method}-{ratio:g}" for ratio in RATIOS for method in METHODS)]
    assert {path.name for path in (out / "runs").iterdir()} == set(names)
    for name, variant in zip(names, result.variants, strict=True):
        run = Run.load(out / "runs" / name)
        assert len(run.samples) == sum(result.questions.values())
        mine = [sample.correct for sample in run.samples if sample.domain == "math"]
        assert sum(map(bool, mine)) / len(mine) == variant.accuracy["math"]


def test_the_numbers_that_the_documents_show(result: DemoResult) -> None:
    """They are printed in README.md; on another machine a question or two may differ."""
    first = result.variants[0].accuracy
    shown = {"math": 98.0, "code": 96.7, "commonsense": 92.7, "science": 90.0, "instruction": 96.7}
    for domain, percent in shown.items():
        assert 100 * first[domain] == pytest.approx(percent, abs=1.5)
    mesa = next(v for v in result.variants if (v.name, v.ratio) == ("mesa", 0.5))
    assert 100 * mesa.mean == pytest.approx(22.1, abs=1.0)


@pytest.mark.parametrize("name", ["unpruned", "reap-0.25", "mesa-0.5"])
def test_written_answers_are_what_a_teacher_forced_pass_says(name: str, result: DemoResult) -> None:
    """Of the export, which nothing masks: right if each token is the most probable, to the end."""
    folder = calibration_folder() / "demo" / "model"
    if name != "unpruned":
        folder = result.output / "exports" / name
    model, tokenizer = load_causal_lm(folder, dtype="float32"), load_tokenizer(folder)
    rows = [json.loads(line) for line in (result.output / "held-out.jsonl").open(encoding="utf-8")]
    chosen = rows[::9]
    told = {s.id: s.correct for s in Run.load(result.output / "runs" / name).samples}
    forced = {row["id"]: teacher_forced(model, tokenizer, row) for row in chosen}
    assert forced == {row["id"]: told[row["id"]] for row in chosen}
    assert 0 < sum(forced.values()) < len(forced)


@torch.inference_mode()
def teacher_forced(model: Any, tokenizer: Any, row: dict[str, str]) -> bool:
    prompt = tokenizer(row["prompt"])["input_ids"]
    answer = tokenizer(row["answer"], add_special_tokens=False)["input_ids"]
    due = torch.tensor([*answer, tokenizer.eos_token_id])
    ids = torch.tensor([[*prompt, *answer]])
    said = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :].argmax(-1)
    return bool((said == due).all())


def test_flips_and_p_are_those_of_the_answers(result: DemoResult) -> None:
    base = Run.load(result.output / "runs" / "unpruned").by_key
    ps = []
    for variant in result.variants[1:]:
        other = Run.load(result.output / "runs" / f"{variant.name}-{variant.ratio:g}").by_key
        pairs = [(one.correct, other[key].correct) for key, one in base.items()]
        lost, won = pairs.count((True, False)), pairs.count((False, True))
        assert (variant.lost, variant.won) == (lost, won)
        ps.append(binomtest(lost, lost + won, 0.5).pvalue)
    held = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        held = max(held, min(1.0, ps[place] * (len(ps) - rank)))
        assert result.variants[1 + place].p == pytest.approx(held)


def test_the_table_marks_each_worst_domain(result: DemoResult) -> None:
    text = demo_text(result)
    rows = [line for line in text.splitlines() if line.split()[:1] and "*" in line][:9]
    assert len(rows) == len(result.variants)
    header = next(line for line in text.splitlines() if "held-out" in line)
    for variant, row in zip(result.variants, rows, strict=True):
        assert row.strip().startswith(variant.name) and row.count("*") == 1
        assert f"*{variant.accuracy[variant.worst_domain] * 100:.1f}" in row
    for domain in result.questions:
        assert domain in header


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="exists"):
        moeprune.demo(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("problem", [KeyboardInterrupt, OutputError])
def test_an_unfinished_demo_leaves_nothing(tmp_path: Path, problem: type[BaseException]) -> None:
    def stop(report: Progress) -> None:
        assert (tmp_path / "out").is_dir()
        raise problem

    with pytest.raises(problem):
        moeprune.demo(tmp_path / "out", on_progress=stop)
    assert not list(tmp_path.iterdir())

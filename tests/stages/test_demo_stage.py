"""The demo, whole: the embedded model is worth showing, and every artefact is left behind."""

import json
from pathlib import Path

import pytest

import moeprune
from moeprune.cli.demo_text import demo_text
from moeprune.core.plan import PrunePlan
from moeprune.core.progress import Progress
from moeprune.errors import OutputError
from moeprune.stages.demo import METHODS, RATIOS, DemoResult


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
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == sum(result.questions.values()) * len(result.variants)
    for variant in result.variants:
        mine = [
            row["correct"]
            for row in answers
            if (row["variant"], row["ratio"], row["domain"])
            == (variant.name, variant.ratio, "math")
        ]
        assert sum(mine) / len(mine) == variant.accuracy["math"]


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

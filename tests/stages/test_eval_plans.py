"""eval --plan is eval of the export, question by question, for every method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from plans import plan_keeping
from questions import every_kind, rows, text

import moeprune
from moeprune.core.methods import METHODS
from moeprune.core.plan import PrunePlan
from moeprune.core.run import Run
from moeprune.core.sample import Sample
from moeprune.packaged import calibration_folder

DEMO = calibration_folder() / "demo"
DOMAINS = ("math", "code", "commonsense")


@pytest.fixture(scope="module")
def stats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stats") / "stats.safetensors"
    domains = {name: str(DEMO / "calibration" / f"{name}.jsonl") for name in DOMAINS}
    moeprune.calibrate(DEMO / "model", output=path, domains=domains, device="cpu")
    return path


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Written questions of the demo, and the same with other answers to choose from."""
    folder = tmp_path_factory.mktemp("tasks")
    written, chosen = [], []
    for name in DOMAINS:
        lines = (DEMO / "questions" / f"{name}.jsonl").read_text("utf-8").splitlines()
        mine = [json.loads(line) for line in lines[:6]]
        written += [{**row, "domain": name} for row in mine]
        answers = list(dict.fromkeys(row["answer"] for row in mine))
        for number, row in enumerate(mine):
            others = [answer for answer in answers if answer != row["answer"]]
            choices = [row["answer"], *(others[number:] + others[:number])[:3]]
            chosen.append(
                {
                    "id": row["id"],
                    "domain": name,
                    "question": row["prompt"],
                    "choices": choices[number % 4 :] + choices[: number % 4],
                    "answer": row["answer"],
                }
            )
    rows(folder / "written.jsonl", written)
    rows(folder / "chosen.jsonl", chosen)
    for kind in ("letters", "cloze"):
        (folder / f"{kind}.toml").write_text(
            f'schema = "moeprune.task/1"\nkind = "{kind}"\nquestions = "chosen.jsonl"\n'
        )
    return [str(folder / name) for name in ("written.jsonl", "letters.toml", "cloze.toml")]


PLANS: dict[str, dict[str, Any]] = {
    **{name: {"method": name, "ratio": 0.25} for name in METHODS if name != "evoesap"},
    # Of stats without a loss; by default it would take counts of its own for each layer.
    "best": {"method": "best", "ratio": 0.25, "signal": "reap-sum", "allocation": "uniform"},
    "reap-half": {"method": "reap", "ratio": 0.5},
    "reap-global": {"method": "reap", "ratio": 0.3, "allocation": "global"},
    "mesa-global": {"method": "mesa", "ratio": 0.3, "allocation": "global"},
    "evoesap": {
        "method": "evoesap",
        "ratio": 0.25,
        "model": DEMO / "model",
        "generations": 1,
        "population": 4,
        "elites": 1,
        "search_samples": 2,
        "search_length": 32,
        "search_text": {
            name: str(DEMO / "calibration" / f"{name}.jsonl") for name in ("science", "knowledge")
        },
        "device": "cpu",
    },
}


def ask(model: Path, tasks: Sequence[str], **words: Any) -> Run:
    (run,) = moeprune.eval(
        model,
        tasks=tasks,
        held_out={"science": str(DEMO / "calibration" / "science.jsonl")},
        chunks=3,
        max_new_tokens=12,
        dtype="float32",
        device="cpu",
        **words,
    )
    return run


def assert_same_answers(masked: Run, exported: Run) -> None:
    assert len(masked.samples) == len(exported.samples)
    for mine, theirs in zip(masked.samples, exported.samples, strict=True):
        assert answer(mine) == answer(theirs)
        for name in ("loglik", "logprobs"):
            assert mine.details.get(name) == pytest.approx(theirs.details.get(name), abs=1e-4)
        if "nll" in mine.details:  # of hundreds of tokens: each within 1e-6 nats or so
            assert mine.details["nll"] == pytest.approx(theirs.details["nll"], rel=1e-6)


def answer(sample: Sample) -> tuple[Any, ...]:
    told = (sample.prediction, sample.correct, sample.details.get("text"), sample.tokens)
    return (sample.key, sample.input, sample.truncated, dict(sample.metrics), *told)


def test_every_method_is_here() -> None:
    assert set(PLANS) >= set(METHODS)


@pytest.fixture(scope="module")
def whole(tasks: list[str]) -> Run:
    return ask(DEMO / "model", tasks)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_evaluated_as_its_export(
    name: str, stats: Path, tasks: list[str], whole: Run, tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.json"
    plan = moeprune.plan(stats, output=file, **PLANS[name])
    per_layer = plan.uniform_count is None
    out = moeprune.export(DEMO / "model", plan=file, output=tmp_path / "out", per_layer=per_layer)
    masked, exported = ask(DEMO / "model", tasks, plan=file), ask(out, tasks)
    assert_same_answers(masked, exported)
    assert masked.name == name
    assert masked.variant["plan"] == exported.variant["plan"]
    assert exported.variant["exported"] == ("per-layer" if per_layer else "uniform")
    assert masked.probe["inputs"] == exported.probe["inputs"] == whole.probe["inputs"]
    assert masked.probe["logits"] != whole.probe["logits"]
    assert [one.prediction for one in masked.samples] != [one.prediction for one in whole.samples]


def test_layers_of_different_counts_are_among_them(stats: Path) -> None:
    plans = [moeprune.plan(stats, **PLANS[name]) for name in ("reap-global", "mesa-global")]
    assert all(plan.uniform_count is None for plan in plans)


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("deepseek_v3", "per-layer"),
        ("gpt_oss", "per-layer"),
        ("gpt_oss", "pad"),
        ("glm4_moe", "pad"),
    ],
)
def test_other_families_and_forms(family: str, form: str, tiny: Any, tmp_path: Path) -> None:
    """Biased routers, groups, padding."""
    model = tiny(family)
    # Of deepseek_v3, the same number of each of three groups of four.
    keep: list[Sequence[int]] = [[0, 2, 3, 5, 6, 7, 8, 9, 11], [0, 3, 4, 6, 9, 10]]
    plan: PrunePlan = plan_keeping(model, keep)
    out = moeprune.export(
        model,
        plan=plan,
        output=tmp_path / "out",
        per_layer=form == "per-layer",
        pad=form == "pad",
    )
    words: dict[str, Any] = {
        "tasks": every_kind(tmp_path),
        "corpus": {"t": text(tmp_path / "t.jsonl")},
        "chunk": 50,
        "device": "cpu",
    }
    (masked,) = moeprune.eval(model, plan=plan, **words)
    (exported,) = moeprune.eval(out, **words)
    assert_same_answers(masked, exported)
    assert exported.variant["exported"] == {"pad": "padded"}.get(form, form)

"""Changes of the loss of answers beside their predictions, from the records of runs."""

from __future__ import annotations

from typing import Any

import pytest
from scipy.stats import spearmanr

from moeprune.cli.answer_loss_text import answer_loss_text
from moeprune.core.run import Run
from moeprune.evaluate.comparison.losses import loss_changes


def run(name: str, inputs: str = "same", **domains: dict[str, Any]) -> Run:
    return Run(name=name, answer_loss={"t": {"inputs": inputs, "domains": domains}})


def of(nats: float, **more: float) -> dict[str, Any]:
    return {"tokens": 10, "nats": nats, **more}


BASE = run("base", a=of(1.0), b=of(2.0))


def test_the_base_s_own_run_comes_first_then_what_stands_beside_the_variant() -> None:
    variant = run("v", a=of(1.5, base=1.25, predicted=0.1), b=of(2.5, base=2.25))
    found = loss_changes(BASE, [variant])
    assert [one.loss.change for one in found.changes] == [0.5, 0.5]
    for base in (Run(name="base"), run("base", "other", a=of(7.0), b=of(7.0))):
        found = loss_changes(base, [variant])
        assert [one.loss.change for one in found.changes] == [0.25, 0.25]
        assert found.left == () and found.correlation is None
    assert [one.loss.predicted for one in found.changes] == [0.1, None]


def test_other_answers_are_not_compared() -> None:
    found = loss_changes(BASE, [run("v", "other", a=of(9.0)), Run(name="w")])
    assert found.changes == () and found.left == ("v",)
    assert found.to_json() == {"domains": [], "spearman": None}


def test_how_well_predictions_rank_is_spearman_s() -> None:
    pairs = [(0.1, 1.0), (0.3, 0.9), (0.2, 1.4), (0.5, 3.0), (0.3, 2.0)]
    variants = [
        run(f"v{number}", a=of(1.0 + change, predicted=predicted))
        for number, (predicted, change) in enumerate(pairs)
    ]
    found = loss_changes(BASE, variants)
    assert found.correlation is not None
    assert found.correlation.value == pytest.approx(spearmanr(*zip(*pairs, strict=True))[0])
    assert found.to_json()["spearman"]["n"] == 5
    assert loss_changes(BASE, variants[:2]).correlation is None


def test_a_table_has_the_columns_that_are_known() -> None:
    alone = answer_loss_text(BASE.answer_loss).splitlines()
    assert alone[0].endswith(" (t)") and alone[1].split() == ["domain", "tokens", "loss"]
    both = run("v", a=of(1.5, base=1.0, predicted=0.25), b=of(3.5, base=2.0)).answer_loss
    shown = [line.split() for line in answer_loss_text(both).splitlines()]
    assert shown[1][1:] == ["tokens", "without", "plan", "loss", "change", "predicted"]
    assert shown[2:] == [
        ["b", "10", "2.0000", "3.5000", "+1.5000", "-"],  # the largest change first
        ["a", "10", "1.0000", "1.5000", "+0.5000", "+0.2500"],
    ]
    two = {**both, "u": {"inputs": "", "domains": {"a": of(1.0)}}}
    named = [line.split("  ")[0].strip() for line in answer_loss_text(two).splitlines()[1:]]
    assert named == ["task / domain", "t / b", "t / a", "u / a"]

"""A plan edited by hand is exported without the figures of the plan before the edit."""

import json
from dataclasses import replace

import pytest
from plans import plan_keeping
from tiny import tiny_checkpoint

import moeprune
from moeprune.core.plan_edits import kept_sha256
from moeprune.stages.preparing import prepare


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    model = tiny_checkpoint("qwen3_moe", tmp_path_factory.mktemp("model") / "model")
    plain = plan_keeping(model, [[0, 1, 2, 3, 4, 5]] * len(plan_rows(model)))
    return model, replace(
        plain,
        domain_loss={"math": 0.1234},
        worst_domain="math",
        worst_domain_loss=0.1234,
        lower_bound=0.1111,
        size={"bytes_before": 1000, "bytes_after": 777},
        stability={"jaccard": 0.987},
        kept_sha256=kept_sha256(plain.layer_ids, plain.sets, plain.keep),
    )


def plan_rows(model):
    return moeprune.inspect(model).layer_ids


def test_stale_figures_stand_nowhere(made, tmp_path):
    model, plan = made
    whole = moeprune.export(model, plan=plan, output=tmp_path / "whole")
    assert "12.34%" in (whole / "README.md").read_text("utf-8")
    assert "bytes_planned" in json.loads((whole / "moeprune.json").read_text())["size"]

    edited = replace(plan, keep=((0, 1, 2, 3, 4, 6), *plan.keep[1:]))
    prepared = prepare(model, plan=edited, output=tmp_path / "edited")
    assert any("edited by hand" in warning for warning in prepared.warnings)
    assert "bytes_planned" not in prepared.size
    out = moeprune.export(model, plan=edited, output=tmp_path / "edited")
    card = (out / "README.md").read_text("utf-8")
    for figure in ("12.34%", "11.11%", "0.987"):
        assert figure not in card
    assert "edited by hand" in card
    record = json.loads((out / "moeprune.json").read_text())
    assert any("edited by hand" in warning for warning in record["warnings"])
    assert moeprune.verify(out, source=model).problems == ()

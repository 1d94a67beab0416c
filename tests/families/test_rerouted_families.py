"""Every family exported with k₁ and k₂: the folder computes what the live policy does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from family_data import family_data, family_files, load, logits_of, text_model, write_checkpoint
from policy_watch import given
from test_policy_families import FIXED

import moeprune
from moeprune.core.layout import MoeLayout
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import UnsupportedModelError
from moeprune.observe.load import load_causal_lm
from moeprune.stages.identify import open_model
from moeprune.stages.policies import policy_applied

IDS = list(range(3, 27))
FAST = ("gemma4_text", "inkling_text", "longcat_flash", "minimax_m2", "dbrx", "olmoe")


def params(*, fixed: bool) -> list[Any]:
    names = [name for name in family_files() if (name in FIXED) == fixed]
    every = [pytest.param(name, marks=pytest.mark.families, id=name) for name in names]
    return [pytest.param(name, id=f"{name}-fast") for name in FAST if name in names] + every


def policies(layout: MoeLayout) -> list[RoutingPolicy]:
    """A larger denominator, a smaller one, and that of all experts."""
    k, wide = layout.top_k, max(layout.num_experts)
    least = layout.least_top_k
    pairs = [(max(k - 1, least), k + 1), (k, max(k - 1, 1)), (max(k - 1, least), wide)]
    native = layout.native_policy
    return [RoutingPolicy(k1=k1, k2=k2) for k1, k2 in pairs if (k1, k2) != (native.k1, native.k2)]


def loaded(data: Any, path: Path, *, trust: bool) -> Any:
    live = load_causal_lm(path, dtype="float32", device="cpu", trust_remote_code=trust)
    return text_model(data, live) if hasattr(live, data.text_model or "-") else live


@pytest.mark.parametrize("name", params(fixed=False))
def test_export_equals_the_live_policy(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data = family_data(name)
    source = write_checkpoint(data, tmp_path / "source")
    layout = open_model(source).layout
    full = loaded(data, source, trust=False)
    native = logits_of(full, IDS)
    few = request.node.get_closest_marker("families") is None
    for number, policy in enumerate(policies(layout)[: 2 if few else None]):
        out = tmp_path / f"out-{number}"
        moeprune.export(source, output=out, k1=policy.k1, k2=policy.k2)
        with policy_applied(full, layout, policy):
            want, due = logits_of(full, IDS), given(full, layout, data)
        live = loaded(data, out, trust=True)
        have = logits_of(live, IDS)
        assert (have - want).abs().max() <= 1e-6 * max(1.0, float(want.abs().max())), policy
        # Logits may hang little on a tiny model's experts: what those are given is compared, too.
        found = given(live, layout, data)
        assert len(found) == len(due) > 0
        for one, other in zip(found, due, strict=True):
            assert torch.equal(one.ids_TK, other.ids_TK), policy
            torch.testing.assert_close(one.weights_TK, other.weights_TK, rtol=1e-6, atol=1e-7)
        assert any(one.ids_TK.shape[-1] == policy.k1 for one in found)
        assert (want - native).abs().max() > 0, policy
        if number == 0:
            # Without trust, by the family's own class.
            plain, same = (text_model(data, load(data, path)[0]) for path in (out, source))
            assert torch.equal(logits_of(plain, IDS), logits_of(same, IDS))
            assert moeprune.verify(out, source=source).ok
    config = json.loads((out / "config.json").read_text())
    assert set(config["moeprune"]) == {"format", "k1", "k2", "renormalises", "routers"}


@pytest.mark.parametrize("name", params(fixed=True))
def test_what_runs_a_fixed_number_is_refused(name: str, tmp_path: Path) -> None:
    source = write_checkpoint(family_data(name), tmp_path / "source")
    with pytest.raises(UnsupportedModelError) as raised:
        moeprune.export(source, output=tmp_path / "out", k1=1, k2=2)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["qwen3_vl_moe"])
def test_a_model_that_sees_loads_as_one(name: str, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoModelForImageTextToText

    data = family_data(name)
    source = write_checkpoint(data, tmp_path / "source")
    out = moeprune.export(source, output=tmp_path / "out", k1=1, k2=4)
    text = logits_of(loaded(data, out, trust=True), IDS)
    for auto in (AutoModelForImageTextToText, AutoModel):
        model, report = auto.from_pretrained(out, trust_remote_code=True, output_loading_info=True)
        assert not report["missing_keys"] and not report["mismatched_keys"]
        if auto is AutoModelForImageTextToText:
            assert (logits_of(model.eval(), IDS) - text).abs().max() <= 1e-6
            model.save_pretrained(tmp_path / "again")
    again = logits_of(loaded(data, tmp_path / "again", trust=True), IDS)
    assert (again - text).abs().max() <= 1e-6


@pytest.mark.parametrize("name", ["axk2", "gemma4_text"])
def test_its_routers_compile_whole(name: str, tmp_path: Path) -> None:
    """Routers that choose by a method of their own, and ones that read k from a shared config."""
    data = family_data(name)
    source = write_checkpoint(data, tmp_path / "source")
    out = moeprune.export(source, output=tmp_path / "out", k1=2, k2=4)
    live = loaded(data, out, trust=True)
    compiled = torch.compile(live, backend="eager", fullgraph=True)
    assert (logits_of(compiled, IDS) - logits_of(live, IDS)).abs().max() <= 1e-6

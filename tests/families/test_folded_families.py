"""Every family with k₁ in its config and a gain in its weights, against a live policy of both.

The folder is loaded as anyone would load it: plain transformers, no code of ours, no remote code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from family_data import (
    FamilyData,
    family_data,
    load,
    logits_of,
    params,
    text_model,
    write_checkpoint,
)

import moeprune
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import UnsupportedModelError
from moeprune.stages.identify import open_model
from moeprune.stages.policies import policy_applied

TEXTS = ("The quick brown fox jumps.", "def area(w, h): return w * h", "Größe, naïve café")
IDS = list(b"1 + 2 = 3; 4 * 5 = 20")
# Why a family cannot: routers that run no other number, a table of k columns, shared experts that
# are divided by the same sum.
REFUSED = ("do not fit family", "looks up", "divide shared")
Written = Callable[[str], tuple[FamilyData, Path, Path]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """``written(name)``: data, checkpoint and stats of a family, made once."""
    made: dict[str, tuple[Path, Path]] = {}

    def get(name: str) -> tuple[FamilyData, Path, Path]:
        data = family_data(name)
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            texts, stats = folder / "texts.jsonl", folder / "stats.safetensors"
            texts.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
            source = write_checkpoint(data, folder / name)
            moeprune.calibrate(source, output=stats, domains={"d": str(texts)}, batch_tokens=64)
            made[name] = source, stats
        return data, *made[name]

    return get


def at(config: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        config = config[key]
    return config


@pytest.mark.parametrize("name", params())
def test_a_folded_export_is_the_live_policy_with_its_gains(
    name: str, written: Written, tmp_path: Path, record_property: Any
) -> None:
    data, source, stats = written(name)
    record_property("family", data.entry)
    layout = open_model(source).layout
    k1 = max(layout.top_k - 1, layout.least_top_k)
    k2 = layout.top_k + 1 if layout.num_groups == 1 else layout.top_k
    out = tmp_path / "out"
    options = {"k1": k1, "k2": k2 if layout.renormalises else "E", "fold_gain": stats}
    try:
        moeprune.export(source, output=out, **options)
    except UnsupportedModelError as refused:
        assert any(words in str(refused) for words in REFUSED) and not out.exists()
        assert (
            layout.fixed_routing
            or "table" in {r.role for r in layout.tensors.values()}
            or (layout.extra_rows and layout.renormalises)
        )
        return
    assert not layout.fixed_routing
    config = json.loads((out / "config.json").read_text())
    assert layout.top_k_keys and {at(config, path) for path in layout.top_k_keys} == {k1}
    assert "moeprune" not in config and not list(out.glob("modeling_moeprune*"))
    gains = json.loads((out / "moeprune.json").read_text())["folded_gain"]["gains"]
    assert len(gains) == len(layout.layer_ids)
    assert all(0.3 < gain < 1 for gain in gains) if layout.renormalises else set(gains) == {1.0}

    full, _ = load(data, source)
    small, missing = load(data, out)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not missing[kind], (kind, missing[kind])
    native = logits_of(text_model(data, full), IDS)
    everything = max(layout.num_experts)
    policy = RoutingPolicy(k1=k1, k2=k1 if layout.renormalises else everything, gain=tuple(gains))
    live = text_model(data, full)
    with policy_applied(live, layout, policy):
        wanted = logits_of(live, IDS)
    have = logits_of(text_model(data, small), IDS)
    off = float((have - wanted).abs().max() / max(1.0, float(wanted.abs().max())))
    moved = float((native - wanted).abs().max())
    assert off < (5e-5 if "gemma" in name else 2e-6), off
    assert moved > 1e-3
    report = moeprune.verify(out, source=source)
    assert report.ok, report.to_text()

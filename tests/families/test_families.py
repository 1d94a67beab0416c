"""Every family of transformers, from calibrate to verify; and its routing, number by number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_data import (
    FamilyData,
    all_entries,
    family_data,
    family_files,
    load,
    logits_of,
    params,
    text_model,
    write_checkpoint,
)
from family_sums import block_scale, slow_sums
from forward_reference import expert_scale, looked_up, selection_bias, watch
from router_reference import chosen_by, weights_by

import moeprune
from moeprune.core.stats import FIELDS
from moeprune.observe.scores import router_probabilities
from moeprune.stages.identify import open_model

TEXTS = (
    "The quick brown fox jumps.",
    "def area(w, h): return w * h",
    "Größe, naïve café",
    "1 + 2 = 3; 4 * 5 = 20",
    "x",
)
Written = Callable[[str], tuple[FamilyData, Path]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """``written(name)``: the data and the checkpoint of a family, written once."""
    made: dict[str, Path] = {}

    def get(name: str) -> tuple[FamilyData, Path]:
        data = family_data(name)
        if name not in made:
            made[name] = write_checkpoint(data, tmp_path_factory.mktemp(name) / name)
        return data, made[name]

    return get


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    return path


def token_ids(path: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    return [tokenizer(text)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize("name", params())
def test_calibrate_plan_export_verify(
    name: str, written: Written, texts: Path, tmp_path: Path, record_property: Any
) -> None:
    data, source = written(name)
    record_property("family", data.entry)
    stats, plan, out = tmp_path / "s.safetensors", tmp_path / "p.json", tmp_path / "out"
    moeprune.calibrate(source, output=stats, domains={"d": str(texts)}, batch_tokens=64)
    made = moeprune.plan(stats, output=plan, ratio=0.25)
    moeprune.export(source, output=out, plan=plan)
    report = moeprune.verify(out, source=source, forward=True, tolerance=5e-5)
    assert report.ok, report.to_text()
    removed = sum(len(ids) for ids in made.removed)
    assert removed == 3 * len(made.layer_ids)

    # The export as anyone would load it: every weight has its place, and the model is another one.
    full, _ = load(data, source)
    small, missing = load(data, out)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not missing[kind], (kind, missing[kind])
    ids = token_ids(source)[0]
    before, after = (logits_of(text_model(data, model), ids) for model in (full, small))
    assert torch.isfinite(after).all() and (before - after).abs().max() > 1e-3
    layout = open_model(out).layout
    assert set(layout.num_experts) == {open_model(source).layout.num_experts[0] - 3}


@pytest.mark.parametrize("name", params())
def test_every_field_equals_the_slow_reference(
    name: str, written: Written, texts: Path, record_property: Any
) -> None:
    data, source = written(name)
    record_property("family", data.entry)
    layout = open_model(source).layout
    on_input = layout.observer == "llama4"
    model = text_model(data, load(data, source)[0])
    texts_ids = token_ids(source)
    seen = [watch(model, layout, ids, data, number=i) for i, ids in enumerate(texts_ids)]
    every = [watched for text in seen for layer in text for watched in layer]
    scales = {round(block_scale(watched, on_input=on_input), 4) for watched in every}
    assert scales == {layout.gate_scale}
    want = slow_sums(
        seen, gating=layout.gating, num_experts=layout.num_experts[0], on_input=on_input
    )
    stats = moeprune.calibrate(source, domains={"d": str(texts)}, batch_tokens=64)
    have = stats.domains[0].arrays
    assert set(have) == set(want) == set(FIELDS)
    for field, values in want.items():
        exact = FIELDS[field][1] == "int64"
        np.testing.assert_allclose(
            have[field], values, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-6, err_msg=field
        )
    chosen = layout.top_k * have["tokens"]
    count = have["count"].sum(axis=2)
    assert (count < chosen).any() if layout.idle_experts else (count == chosen).all()
    tokens = sum(map(len, texts_ids))
    passes = layout.passes or 1
    denoised = tokens - len(TEXTS) if data.canvas else 0  # of every text all but the first
    assert (have["tokens"].sum(axis=0) == np.multiply(passes, tokens) + denoised).all()


@pytest.mark.parametrize("name", params())
def test_router_follows_the_stated_gating(
    name: str, written: Written, record_property: Any
) -> None:
    data, source = written(name)
    record_property("family", data.entry)
    layout = open_model(source).layout
    rule, gating = data.router, layout.gating
    model = text_model(data, load(data, source)[0])
    biases, factors = selection_bias(model, layout), expert_scale(model, layout)
    moved = limited = 0
    for number, ids in enumerate(token_ids(source)):
        tables = looked_up(model, layout, ids)
        seen = watch(model, layout, ids, data, number=number)
        rows = zip(biases, factors, tables, seen, strict=True)
        for bias_E, factor_E, table_TK, layer in [(*of, one) for *of, row in rows for one in row]:
            logits_TE, ids_TK = layer.logits_TE.numpy(), layer.ids_TK.numpy()
            have_TK = layer.weights_TK.numpy()
            assert (factor_E is not None) == bool(rule.get("expert_scale"))
            if factor_E is not None:
                have_TK = have_TK / factor_E[ids_TK]
            # Ours from the logits the router returns; every weight follows from it.
            probs_TE = router_probabilities(layer.logits_TE, gating=gating).numpy()
            np.testing.assert_allclose(probs_TE.sum(axis=1), 1, rtol=1e-6)
            shared_TS = None if layer.shared_TS is None else layer.shared_TS.numpy()
            weights_TK = weights_by(
                logits_TE, ids_TK, rule=rule, gating=gating, shared_TS=shared_TS
            )
            np.testing.assert_allclose(have_TK, weights_TK, rtol=2e-5)
            if rule["weights"] != "sparsemixer":
                share_TK = weights_TK / np.take_along_axis(probs_TE, ids_TK, axis=1)
                np.testing.assert_allclose(share_TK, share_TK[:, :1].repeat(ids_TK.shape[1], 1))
            if table_TK is not None:
                assert (np.sort(ids_TK, axis=1) == table_TK).all()
                continue
            # The bias and the groups move the choice, and only that.
            assert (bias_E is not None) == ("bias" in rule)
            options = {"gating": gating, "top_k": layout.top_k}
            chosen_TK = chosen_by(logits_TE, bias_E, rule=rule, **options)
            assert (np.sort(ids_TK, axis=1) == chosen_TK).all()
            unbiased_TK = chosen_by(logits_TE, None, rule=rule, **options)
            moved += int((unbiased_TK != chosen_TK).any(axis=1).sum())
            free = {key: value for key, value in rule.items() if key != "groups"}
            free_TK = chosen_by(logits_TE, bias_E, rule=free, **options)
            limited += int((free_TK != chosen_TK).any(axis=1).sum())
    assert bool(moved) == ("bias" in rule) and bool(limited) == ("groups" in rule)
    groups = rule.get("groups", (1, 1, ""))
    assert (layout.num_groups, layout.top_groups) == tuple(groups[:2])


def test_every_file_is_an_entry_of_the_list() -> None:
    assert {family_data(name).entry for name in family_files()} <= set(all_entries())

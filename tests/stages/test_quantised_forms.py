"""--quantize with everything else that export does: plans, forms, routing, next-token layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mtp
import pytest
from dequantised import plain_weights, stored, write_reference
from folding import made_up_stats, record_of, same
from test_export_stage import plan_for
from test_quantised_export import difference
from tiny import tiny_checkpoint
from uneven import uneven_plan

import moeprune

Tiny = Callable[[str], Path]


def settings(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text("utf-8"))["quantization_config"]


def check_same(mine: Path, theirs: Path) -> None:
    """Two exports hold the same weights and name the same modules."""
    one, other = stored(mine), stored(theirs)
    assert one.keys() == other.keys()
    assert all(same(one[name], other[name]) for name in one)
    assert settings(mine) == settings(theirs)


@pytest.mark.parametrize("how", ["plan", "padded", "folded"])
def test_the_bytes_are_those_of_one_step_after_the_other(
    how: str, tiny: Tiny, tmp_path: Path
) -> None:
    source = tiny("glm4_moe" if how == "padded" else "qwen3_moe")
    options: dict[str, Any] = {"plan": plan_for(source)}
    if how == "padded":
        options = {"plan": uneven_plan(source), "pad": True}
    if how == "folded":
        options |= {"k1": 2, "k2": 4, "fold_gain": made_up_stats(source)}
    step = moeprune.export(source, output=tmp_path / "step", **options)
    two = moeprune.export(step, output=tmp_path / "two", quantize="int8")
    one = moeprune.export(source, output=tmp_path / "one", quantize="int8", **options)
    check_same(one, two)
    errors = [record_of(folder)["quantisation"]["error"] for folder in (one, two)]
    assert errors[0]["relative"] == errors[1]["relative"]
    kept = [len(ids) for ids in options["plan"].keep]
    assert [len(layer) for layer in errors[0]["layers"]] == kept
    if how == "padded":
        assert record_of(one)["size"]["bytes_padding"] < record_of(step)["size"]["bytes_padding"]
        assert difference(one, write_reference(one, tmp_path / "reference")) <= 1e-5
    else:
        assert errors[0]["layers"] == errors[1]["layers"]


@pytest.mark.parametrize("how", ["k1 k2", "per layer", "both"])
def test_with_code_in_the_folder(how: str, tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("qwen3_moe")
    options: dict[str, Any] = {} if how == "per layer" else {"k1": 2, "k2": 4}
    if how != "k1 k2":
        options |= {"plan": uneven_plan(source), "per_layer": True}
    out = moeprune.export(source, output=tmp_path / "out", quantize="int4", **options)
    reference = write_reference(out, tmp_path / "reference")
    assert difference(out, reference, "--trust") <= 1e-5


@pytest.mark.parametrize("mode", ["prune", "drop", "keep"])
@pytest.mark.parametrize("family", ["mellum", "glm4_moe"])
def test_next_token_layers(family: str, mode: str, tmp_path: Path) -> None:
    source = mtp.mtp_checkpoint(family, tmp_path / "source")
    out = moeprune.export(
        source, plan=plan_for(source), output=tmp_path / "out", mtp=mode, quantize="int8"
    )
    plain = moeprune.export(source, plan=plan_for(source), output=tmp_path / "plain", mtp=mode)
    due = {n for n, t in stored(plain).items() if ".experts." in n and t.dim() == 2}
    assert any(name.startswith(mtp.MTP_PREFIX[family]) for name in due) == (mode != "drop")
    assert set(plain_weights(out)) == due
    part = record_of(out)["quantisation"]["parts"]["expert"]
    assert part["parameters"] == part["quantised"] == sum(stored(plain)[n].numel() for n in due)


def test_shards_and_their_index(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny_checkpoint("olmoe", tmp_path / "source", max_shard_size="60KB")
    whole = moeprune.export(tiny("olmoe"), output=tmp_path / "whole", quantize="int4")
    index = json.loads((source / "model.safetensors.index.json").read_text("utf-8"))
    for number, size in enumerate([None, "20KB", "1GB"]):
        out = moeprune.export(
            source, output=tmp_path / f"{number}", quantize="int4", shard_size=size
        )
        check_same(out, whole)
        made = out / "model.safetensors.index.json"
        assert made.exists() == (size != "1GB")
        if size == "1GB":
            continue
        body = json.loads(made.read_text("utf-8"))
        assert body["weight_map"].keys() == stored(whole).keys()
        assert body["metadata"]["total_size"] == sum(t.nbytes for t in stored(out).values())
        stated = index["metadata"]["total_parameters"]
        assert body["metadata"]["total_parameters"] == stated
        files = set(body["weight_map"].values())
        assert files == {path.name for path in out.glob("*.safetensors")}
        for module in {name.rpartition(".")[0] for name in body["weight_map"]}:
            parts = {f for n, f in body["weight_map"].items() if n.startswith(f"{module}.weight_")}
            assert len(parts) < 2  # what one weight became lies together

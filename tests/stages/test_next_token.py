"""export --mtp on checkpoints with real next-token layers, loaded and run by transformers."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mtp import MTP_FAMILIES, MTP_PREFIX, mtp_checkpoint
from safetensors.torch import load_file, save_file
from test_export_stage import plan_for

import moeprune
from moeprune.core.plan_edits import kept_sha256
from moeprune.errors import CheckpointError, UnsupportedModelError, UsageError
from moeprune.stages.preparing import prepare

# Families whose next-token layers transformers 5.24 can run.
RUN = ("deepseek_v3", "glm4_moe", "mellum")
PROMPT = torch.tensor([[5, 60, 7, 80, 9]])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("mtp")
    return {family: mtp_checkpoint(family, folder / family) for family in MTP_FAMILIES}


def load(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path).eval()


def generate(model: Any, **options: Any) -> list[int]:
    tokens: list[int] = model.generate(PROMPT, max_new_tokens=12, do_sample=False, **options)[
        0
    ].tolist()
    return tokens


def mtp_state(path: Path, main: Any) -> dict[str, torch.Tensor]:
    """The next-token layer as transformers holds it in memory."""
    from transformers.modeling_layers import MtpModel

    model = MtpModel.from_pretrained(main)
    return {n: v for n, v in model.state_dict().items() if n.startswith("layers.")}


def record(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "moeprune.json").read_text()))


def own(names: Any, family: str) -> set[str]:
    return {name for name in names if name.startswith(MTP_PREFIX[family])}


@pytest.mark.parametrize("family", RUN)
def test_prune_runs_with_use_mtp(family: str, sources: dict[str, Path], tmp_path: Path) -> None:
    source = sources[family]
    plan = plan_for(source)
    out = moeprune.export(source, plan=plan, output=tmp_path / "out")
    full, small = load(source), load(out)
    assert generate(small, use_mtp=True) == generate(small)
    before, after = mtp_state(source, full), mtp_state(out, small)
    assert before.keys() == after.keys()
    cut = 0
    for name, value in after.items():
        expected = before[name]
        if expected.shape != value.shape:
            expected, cut = expected[list(plan.keep[-1])], cut + 1
        assert torch.equal(expected, value), name
    assert cut >= 3  # gate_up_proj, down_proj and the router
    assert moeprune.verify(out, source=source, forward=True).ok
    assert record(out)["next_token_layers"] == {
        "mode": "prune",
        "tensors": len(own(load_file(source / "model.safetensors"), family)),
        "ids_of_layer": plan.layer_ids[-1],
    }


@pytest.mark.parametrize("family", MTP_FAMILIES)
def test_drop_leaves_a_plain_model(family: str, sources: dict[str, Path], tmp_path: Path) -> None:
    source = sources[family]
    plan = plan_for(source)
    out = moeprune.export(source, plan=plan, output=tmp_path / "out", mtp="drop")
    cut = moeprune.export(source, plan=plan, output=tmp_path / "cut")
    mine, theirs = load_file(out / "model.safetensors"), load_file(cut / "model.safetensors")
    assert own(theirs, family) and mine.keys() == theirs.keys() - own(theirs, family)
    key = MTP_FAMILIES[family][1]
    text = (cut / "config.json").read_text()
    assert (out / "config.json").read_text() == text.replace(f'"{key}": 1', f'"{key}": 0')
    assert generate(load(out)) == generate(load(cut))
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.problems
    stored = load_file(source / "model.safetensors")
    assert report.tensors + report.dropped == len(stored)
    size = record(out)["size"]
    assert size["bytes_after"] == sum(value.nbytes for value in mine.values())
    assert record(out)["next_token_layers"]["mode"] == "drop"
    # An export without these layers is a model like any other, and can be pruned again.
    assert moeprune.inspect(out).following_layers == 0


@pytest.mark.parametrize("family", MTP_FAMILIES)
def test_keep_leaves_the_layers_alone(
    family: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    source = sources[family]
    out = moeprune.export(source, plan=plan_for(source), output=tmp_path / "out", mtp="keep")
    mine, theirs = load_file(out / "model.safetensors"), load_file(source / "model.safetensors")
    assert own(mine, family) == own(theirs, family)
    assert all(torch.equal(mine[name], theirs[name]) for name in own(mine, family))
    model = load(out)
    cut = moeprune.export(source, plan=plan_for(source), output=tmp_path / "cut")
    assert generate(model) == generate(load(cut))
    if family in RUN:  # what the warning says
        with pytest.raises(RuntimeError, match="mismatch"):
            generate(model, use_mtp=True)
    assert moeprune.verify(out, source=source, forward=True).ok
    body = record(out)
    assert body["next_token_layers"]["num_experts"] == 12
    (warning,) = body["warnings"]
    assert "keep all 12 experts, config.json states 9" in warning
    assert "keep all 12 experts" in (out / "README.md").read_text()
    with pytest.raises((CheckpointError, UnsupportedModelError)):
        moeprune.inspect(out)


@pytest.mark.parametrize("mode", ["prune", "drop", "keep"])
def test_verify_knows_a_wrong_next_token_layer(
    mode: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    source = sources["glm4_moe"]
    out = moeprune.export(source, plan=plan_for(source), output=tmp_path / "out", mtp=mode)
    tensors = load_file(out / "model.safetensors")
    name = "model.layers.46.mlp.experts.2.up_proj.weight"
    if mode == "drop":
        tensors[name] = load_file(source / "model.safetensors")[name]
    else:
        tensors[name][0, 0] += 1
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    report = moeprune.verify(out, source=source)
    assert not report.ok and any(name in problem for problem in report.problems)


def test_verify_knows_a_wrong_count(sources: dict[str, Path], tmp_path: Path) -> None:
    source = sources["deepseek_v3"]
    out = moeprune.export(source, plan=plan_for(source), output=tmp_path / "out", mtp="drop")
    for value in ("1", "false", "0.0", "2"):
        text = (out / "config.json").read_text()
        new = re.sub(r'("num_nextn_predict_layers": )[^,\s]+', rf"\g<1>{value}", text)
        (out / "config.json").write_text(new)
        report = moeprune.verify(out, source=source)
        assert any("num_nextn_predict_layers is not 0" in p for p in report.problems)


def test_verify_reads_older_records(sources: dict[str, Path], tmp_path: Path) -> None:
    source = sources["mellum"]
    out = moeprune.export(source, plan=plan_for(source), output=tmp_path / "out")
    body = record(out)
    for layers, fits in ((None, True), ({"mode": "melt"}, False), ("drop", False)):
        body.pop("next_token_layers", None)
        if layers is not None:
            body["next_token_layers"] = layers
        (out / "moeprune.json").write_text(json.dumps(body))
        if fits:
            assert moeprune.verify(out, source=source).ok
        else:
            with pytest.raises(CheckpointError, match=r"next_token_layers\.mode"):
                moeprune.verify(out, source=source)


def test_the_size_says_what_the_plan_could_not(sources: dict[str, Path], tmp_path: Path) -> None:
    source = sources["deepseek_v3"]
    facts = moeprune.inspect(source)
    freed = sum(facts.expert_bytes) * 3
    planned = {
        "bytes_before": facts.total_bytes,
        "bytes_after": facts.total_bytes - freed,
    }
    plan = plan_for(source)
    stated = kept_sha256(plan.layer_ids, plan.sets, plan.keep)
    plan = replace(plan, size=planned, kept_sha256=stated)
    exact = prepare(source, plan=plan, output=tmp_path / "out")
    assert exact.size == planned and "bytes_planned" not in exact.size
    for mode in ("drop", "keep"):
        size = prepare(source, plan=plan, output=tmp_path / "out", mtp=mode).size
        assert size["bytes_planned"] == planned["bytes_after"] != size["bytes_after"]


def test_a_count_that_is_not_stated_is_added(sources: dict[str, Path], tmp_path: Path) -> None:
    """transformers takes 1 for granted where deepseek_v3 does not say."""
    source = shutil.copytree(sources["deepseek_v3"], tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    del config["num_nextn_predict_layers"]
    (source / "config.json").write_text(json.dumps(config, indent=2))
    out = moeprune.export(source, plan=plan_for(source), output=tmp_path / "out", mtp="drop")
    assert json.loads((out / "config.json").read_text())["num_nextn_predict_layers"] == 0
    assert load(out).config.num_mtp_layers == 0
    assert moeprune.verify(out, source=source).ok


def test_a_model_without_such_layers_is_the_same_either_way(tiny: Any, tmp_path: Path) -> None:
    source = tiny("qwen3_moe")
    outs = [
        moeprune.export(source, plan=plan_for(source), output=tmp_path / mode, mtp=mode)
        for mode in ("prune", "drop", "keep")
    ]
    for name in ("config.json", "model.safetensors", "README.md"):
        assert len({(out / name).read_bytes() for out in outs}) == 1
    assert all(moeprune.verify(out, source=source).ok for out in outs)
    with pytest.raises(UsageError, match=r"no --mtp mode named 'cut'"):
        moeprune.export(source, plan=plan_for(source), output=tmp_path / "x", mtp="cut")

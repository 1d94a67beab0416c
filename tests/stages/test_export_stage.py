from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plans import plan_keeping
from safetensors import safe_open
from tiny import tiny_checkpoint

from moeprune.artefact import sha256_file
from moeprune.core.plan import PrunePlan
from moeprune.errors import (
    CheckpointError,
    MismatchError,
    OutputError,
    PlanError,
    UnsupportedModelError,
)
from moeprune.stages.export import export
from moeprune.stages.identify import open_model

Tiny = Callable[[str], Path]
FAMILIES = ("qwen3_moe", "gpt_oss", "deepseek_v3")


def plan_for(model: Path, *, leave: int = 2) -> PrunePlan:
    """Of every router group's four experts, one leaves: another one in each layer."""
    facts = open_model(model).facts
    keep = [
        tuple(e for e in range(count) if e % 4 != (leave + row) % 4)
        for row, count in enumerate(facts.num_experts)
    ]
    return plan_keeping(model, keep)


def stored(path: Path) -> dict[str, torch.Tensor]:
    """All tensors, by safetensors' own reader."""
    found: dict[str, torch.Tensor] = {}
    for shard in sorted(path.glob("*.safetensors")):
        with safe_open(shard, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def hashes(path: Path) -> dict[str, str]:
    return {item.name: sha256_file(item) for item in path.iterdir()}


@pytest.mark.parametrize("size", ["1GB", "60KB"])
@pytest.mark.parametrize("family", FAMILIES)
def test_exports_load_in_transformers(family: str, size: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    source = tiny_checkpoint(family, tmp_path / "source", max_shard_size=size)
    plan = plan_for(source)
    out = export(source, plan=plan, output=tmp_path / "out")
    assert (out / "model.safetensors").exists() == (size == "1GB")
    kept = plan.uniform_count
    model, report = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(report.values()), report
    assert {v for k, v in model.config.to_dict().items() if k.endswith("_experts")} >= {kept}
    # What transformers holds in memory equals the source's memory cut along its expert axis:
    # an oracle that knows nothing of tensor names on disk.
    full = AutoModelForCausalLM.from_pretrained(source).state_dict()
    small = model.state_dict()
    assert full.keys() == small.keys()
    changed = 0
    for name, tensor in small.items():
        if full[name].shape == tensor.shape:
            assert torch.equal(full[name], tensor), name
            continue
        changed += 1
        layer = int(name.split(".layers.")[1].split(".")[0])
        ids = plan.keep[plan.layer_ids.index(layer)]
        assert torch.equal(full[name][list(ids)], tensor), name
    assert changed >= 3 * plan.num_layers
    assert stored(out).keys() <= stored(source).keys()


def test_config_and_other_files_are_the_sources(tiny: Tiny, tmp_path: Path) -> None:
    source = shutil.copytree(tiny("qwen3_moe"), tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config["num_experts"] = config.get("num_local_experts", config.get("num_experts"))
    config["num_local_experts"] = config["num_experts"]  # both spellings, as some files have
    text = json.dumps(config, indent=4).replace("\n", "\r\n") + "\r\n\r\n"
    (source / "config.json").write_bytes(text.encode())
    (source / "modeling_own.py").write_text("raise RuntimeError('never run')\n")
    plan = plan_for(source)
    out = export(source, plan=plan, output=tmp_path / "out")
    expected = text
    for key in ("num_experts", "num_local_experts"):
        expected = expected.replace(f'"{key}": 12', f'"{key}": 9')
    assert (out / "config.json").read_bytes().decode() == expected and expected != text
    mine, theirs = hashes(out), hashes(source)
    own = {"config.json", "model.safetensors", "README.md", "moeprune.json"}
    assert mine.keys() - theirs.keys() == {"README.md", "moeprune.json"}
    assert {n for n in theirs if mine[n] != theirs[n]} <= own
    record = json.loads((out / "moeprune.json").read_text())
    assert record["schema"] == "moeprune.export/1"
    assert sorted(record["changed_config_keys"]) == ["num_experts", "num_local_experts"]
    assert record["source"] == {"name": plan.model_name, "fingerprint": plan.model_fingerprint}
    assert PrunePlan.from_json(record["plan"], path="x") == plan
    for path, size in ((source, "bytes_before"), (out, "bytes_after")):
        assert record["size"][size] == sum(t.nbytes for t in stored(path).values())
    assert str(tmp_path) not in (out / "moeprune.json").read_text()


def test_same_input_same_bytes_and_a_plan_file_serves(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("deepseek_v3")
    plan = plan_for(source)
    plan.save(tmp_path / "plan.json")
    one = export(source, plan=plan, output=tmp_path / "one")
    two = export(str(source), plan=str(tmp_path / "plan.json"), output=str(tmp_path / "two"))
    assert hashes(one) == hashes(two)


def test_an_export_can_be_pruned_again(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("qwen3_moe")
    one = export(source, plan=plan_for(source), output=tmp_path / "one")
    facts = open_model(one).facts
    keep = ((0, 2, 3, 8),) * facts.num_layers
    plan = replace(
        plan_for(source),
        model_fingerprint=facts.fingerprint,
        num_experts=facts.num_experts,
        keep=keep,
    )
    two = export(one, plan=plan, output=tmp_path / "two")
    assert open_model(two).facts.num_experts == (4,) * facts.num_layers
    record = json.loads((two / "moeprune.json").read_text())
    assert PrunePlan.from_json(record["plan"], path="x").keep == keep


def test_never_imports_torch(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("qwen3_moe")
    plan_for(source).save(tmp_path / "plan.json")
    code = (
        "import sys; from moeprune import export\n"
        "export(sys.argv[1], plan=sys.argv[2], output=sys.argv[3])\n"
        "heavy = {'torch', 'transformers', 'safetensors', 'huggingface_hub', 'click', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    arguments = [str(source), str(tmp_path / "plan.json"), str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_what_is_refused_leaves_nothing(tiny: Tiny, tmp_path: Path) -> None:
    source = shutil.copytree(tiny("qwen3_moe"), tmp_path / "source")
    plan = plan_for(source)
    out = tmp_path / "out"
    other = tiny_checkpoint("qwen3_moe", tmp_path / "other", seed=1)
    with pytest.raises(MismatchError) as caught:
        export(other, plan=plan, output=out)
    assert plan.model_fingerprint[:12] in str(caught.value)
    assert open_model(other).facts.fingerprint[:12] in str(caught.value)
    ragged = replace(plan, keep=(plan.keep[0][:-1], *plan.keep[1:]))
    with pytest.raises(PlanError, match=r"keeps 8 to 9 experts.*--allocation uniform"):
        export(source, plan=ragged, output=out)
    with pytest.raises(PlanError, match="does not exist"):
        export(source, plan=tmp_path / "absent.json", output=out)
    with pytest.raises(OutputError, match="inside the model"):
        export(source, plan=plan, output=source / "out")
    with pytest.raises(OutputError, match="exists"):
        export(source, plan=plan, output=other)
    config = json.loads((source / "config.json").read_text())
    ignore = {"quant_method": "fp8", "ignore": ["model.layers.0.mlp.experts.3.up_proj"]}
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": ignore}))
    with pytest.raises(UnsupportedModelError, match="single expert"):
        export(source, plan=plan, output=out)
    (source / "config.json").write_text(json.dumps(config))
    (source / "hf_quant_config.json").write_text(json.dumps({"q": {"exclude": ["a.experts.0.b"]}}))
    with pytest.raises(UnsupportedModelError, match=r"hf_quant_config\.json"):
        export(source, plan=plan, output=out)
    (source / "hf_quant_config.json").unlink()
    with (source / "model.safetensors").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        export(source, plan=plan, output=out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "source"]

"""Different counts per layer: the folder's own code, loaded where there is no moeprune."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import forked
import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_checkpoint
from uneven import masked_logits, uneven_plan

import moeprune
from moeprune.checkpoint.own_code import MODELING_FILE, modeling_text
from moeprune.errors import PlanError, UnsupportedModelError, UsageError
from moeprune.evaluate.logits import compare_logits
from moeprune.stages.export import export
from moeprune.stages.forms import check_form
from moeprune.stages.identify import open_model

Tiny = Callable[[str], Path]
FAMILIES = {
    "qwen3_moe": {},
    "olmoe": {},
    "mixtral": {},
    "glm4_moe": {},
    "gpt_oss": {},
    "deepseek_v3": {"n_group": 1, "topk_group": 1},
    "granitemoe": {},
    "qwen3_5_moe": {},
}
LOADER = Path(__file__).parent / "foreign_loader.py"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("qwen3_moe", tmp_path_factory.mktemp("source") / "source")


def foreign(folder: Path, result: Path) -> dict[str, torch.Tensor]:
    """What a process without moeprune saw."""
    variables = dict(os.environ)
    variables.pop("PYTHONPATH", None)
    done = forked.run([LOADER, folder, result], env=variables, cwd=result.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(result)


@pytest.mark.parametrize("family", FAMILIES)
def test_loads_without_moeprune(family: str, tmp_path: Path) -> None:
    source = tiny_checkpoint(family, tmp_path / "source", **FAMILIES[family])
    plan = uneven_plan(source)
    assert plan.uniform_count is None
    out = export(source, plan=plan, output=tmp_path / "out", per_layer=True)
    config = json.loads((out / "config.json").read_text())
    counts = config["moeprune"]["experts_per_layer"]
    assert [count for count in counts if count] == [len(ids) for ids in plan.keep]
    assert [row for row, count in enumerate(counts) if count] == list(plan.layer_ids)
    reference = masked_logits(source, plan)
    found = foreign(out, tmp_path / "seen.safetensors")
    assert found["plain"] == 0, "loaded without trust_remote_code"
    assert found["body"] == 0
    for name in ("eager", "grouped_mm", "batched_mm", "default", "again"):
        difference = compare_logits([reference[0]], [found[name][0]])
        assert difference.within(1e-5), (name, difference)
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()


def test_groups_stay_equal_and_differ_per_layer(tmp_path: Path) -> None:
    source = tiny_checkpoint("deepseek_v3", tmp_path / "source")
    out = export(source, plan=uneven_plan(source), output=tmp_path / "out", per_layer=True)
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()


def test_what_config_json_says(source: Path, tmp_path: Path) -> None:
    out = export(source, plan=uneven_plan(source), output=tmp_path / "out", per_layer=True)
    config = json.loads((out / "config.json").read_text())
    assert config["auto_map"] == {
        "AutoModel": "modeling_moeprune.MoePruneModel",
        "AutoModelForCausalLM": "modeling_moeprune.MoePruneForCausalLM",
    }
    assert config["moeprune"] == {"format": 1, "experts_per_layer": [11, None, 10, 12]}


def test_verify_runs_no_code_that_is_not_its_own(source: Path, tmp_path: Path) -> None:
    out = export(source, plan=uneven_plan(source), output=tmp_path / "out", per_layer=True)
    file, mark = out / MODELING_FILE, tmp_path / "ran"
    file.write_text(modeling_text() + f"\nopen({str(mark)!r}, 'w')\n")
    report = moeprune.verify(out, source=source, forward=True)
    assert not mark.exists() and report.logits is None
    assert any(MODELING_FILE in problem for problem in report.problems)
    file.unlink()
    report = moeprune.verify(out, source=source, forward=True)
    assert any("is missing" in problem for problem in report.problems)
    file.write_bytes(modeling_text().encode())
    # The code is ours, but config.json leads somewhere else.
    config = json.loads((out / "config.json").read_text())
    (out / "other.py").write_text(f"open({str(mark)!r}, 'w')\n")
    config["auto_map"]["AutoConfig"] = "other.X"
    (out / "config.json").write_text(json.dumps(config))
    report = moeprune.verify(out, source=source, forward=True)
    assert not mark.exists() and report.logits is None
    assert any("auto_map" in problem for problem in report.problems)


@pytest.mark.parametrize(
    "counts", [[11, None, 10], [11, None, 12, 10], [None] * 4, "11", None, [11, 1, 10, 12]]
)
def test_verify_sees_other_counts(counts: object, source: Path, tmp_path: Path) -> None:
    out = export(source, plan=uneven_plan(source), output=tmp_path / "out", per_layer=True)
    config = json.loads((out / "config.json").read_text())
    config["moeprune"]["experts_per_layer"] = counts
    (out / "config.json").write_text(json.dumps(config))
    assert any("moeprune" in p for p in moeprune.verify(out, source=source).problems)


@pytest.mark.parametrize("count", [11, 12.0])
def test_verify_sees_another_widest_count(count: float, source: Path, tmp_path: Path) -> None:
    out = export(source, plan=uneven_plan(source), output=tmp_path / "out", per_layer=True)
    config = json.loads((out / "config.json").read_text())
    key = next(key for key in ("num_local_experts", "num_experts") if key in config)
    config[key] = count
    (out / "config.json").write_text(json.dumps(config))
    assert any(key in problem for problem in moeprune.verify(out, source=source).problems)


def test_without_an_option_it_is_refused(source: Path, tmp_path: Path) -> None:
    plan = uneven_plan(source)
    with pytest.raises(PlanError, match=r"10 to 12 experts.*--per-layer.*--pad"):
        export(source, plan=plan, output=tmp_path / "out")
    with pytest.raises(UsageError, match="one of them"):
        export(source, plan=plan, output=tmp_path / "out", per_layer=True, pad=True)
    even = replace(plan, keep=(tuple(range(9)),) * 3)
    for option in ("per_layer", "pad"):
        with pytest.raises(UsageError, match="9 experts in every layer"):
            export(source, plan=even, output=tmp_path / "out", **{option: True})
    aimed = replace(plan, options={"target": "vllm"})
    with pytest.raises(UsageError, match="--target vllm"):
        export(source, plan=aimed, output=tmp_path / "out", per_layer=True)
    assert not list(tmp_path.iterdir())


def test_models_with_code_of_their_own_and_quantised_ones_are_refused(
    source: Path, tmp_path: Path
) -> None:
    plan = uneven_plan(source)
    for name, value, match in (
        ("auto_map", {"AutoModelForCausalLM": "x.Y"}, "code of its own"),
        ("quantization_config", {"quant_method": "fbgemm_fp8"}, "unquantised"),
    ):
        model = tmp_path / name
        shutil.copytree(source, model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, name: value}))
        with pytest.raises(UnsupportedModelError, match=match):
            export(model, plan=plan, output=tmp_path / "out", per_layer=True)


def test_a_family_that_nobody_tested_is_refused(source: Path) -> None:
    opened = open_model(source)
    other = replace(opened.layout, model_type="new_moe")
    with pytest.raises(UnsupportedModelError, match="new_moe is not among them"):
        check_form("per-layer", opened.index, other)


def test_it_cannot_be_pruned_again(source: Path, tmp_path: Path) -> None:
    out = export(source, plan=uneven_plan(source), output=tmp_path / "out", per_layer=True)
    with pytest.raises(UnsupportedModelError, match="exported with --per-layer"):
        moeprune.inspect(out)


def test_the_file_is_pure_python_of_torch_and_transformers() -> None:
    import ast

    tree = ast.parse(modeling_text())
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module
            names.add(node.module.split(".")[0])
    assert names - set(sys.stdlib_module_names) == {"torch", "transformers"}


@pytest.mark.parametrize(
    ("block", "match"),
    [
        ({"format": 2, "experts_per_layer": [11, None, 10, 12]}, "format is 2"),
        ({"format": 1, "experts_per_layer": [11, None, 10, 12, 12]}, "5 layers of at most 12"),
        ({"format": 1, "experts_per_layer": [11, None, 10, 13]}, "at most 13"),
        ({"format": 1, "experts_per_layer": [11, 11, 10, 12]}, "layer 1 does not depend"),
        ({"format": 1, "experts_per_layer": [11, None, 9, 12]}, "size|mismatch"),
    ],
)
def test_a_damaged_block_never_loads(
    block: dict[str, object], match: str, source: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    out = export(source, plan=uneven_plan(source), output=tmp_path / "out", per_layer=True)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "moeprune": block}))
    with pytest.raises((ValueError, RuntimeError), match=match):
        AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)


def test_command_line(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from moeprune.cli.main import main

    plan = tmp_path / "plan.json"
    uneven_plan(source).save(plan)
    out = tmp_path / "out"
    words = ["export", str(source), "-o", str(out), "--plan", str(plan)]
    assert main(words) == 2
    problem = capsys.readouterr().err
    assert "--per-layer" in problem and "--pad" in problem and problem.count("\n") == 1
    assert main([*words, "--pad"]) == 2 and "not exact" in capsys.readouterr().err
    assert main([*words, "--per-layer", "--dry-run"]) == 0 and not out.exists()
    capsys.readouterr()
    assert main([*words, "--per-layer"]) == 0
    assert "10 to 12 experts in a MoE layer; loads with trust" in capsys.readouterr().out
    assert main(["verify", str(out), "--source", str(source), "--forward"]) == 0

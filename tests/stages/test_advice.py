"""What a plan advises for different counts per layer is what export accepts, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import synthetic
from conftest import Tiny

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.core.stats import CalibrationStats
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.stages.identify import open_model
from moeprune.stages.preparing import prepare

FBGEMM = {"quantization_config": {"quant_method": "fbgemm_fp8"}}
FP8 = {"quantization_config": {"quant_method": "fp8"}}
OWN_CODE = {"auto_map": {"AutoModelForCausalLM": "modeling_x.Model"}}
# family, changes of config.json -> the options that export accepts
MODELS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "plain": ("qwen3_moe", {}, {"--per-layer"}),
    "plain with a bias": ("glm4_moe", {}, {"--per-layer", "--pad"}),
    "quantised": ("qwen3_moe", FBGEMM, set()),
    "quantised with a bias": ("glm4_moe", FBGEMM, set()),
    "fp8 with a bias": ("glm4_moe", FP8, {"--pad"}),
    "own code": ("qwen3_moe", OWN_CODE, set()),
    "own code with a bias": ("glm4_moe", OWN_CODE, {"--pad"}),
}


@pytest.fixture
def model(request: pytest.FixtureRequest, tiny: Tiny, tmp_path: Path) -> Path:
    family, changes, _ = MODELS[request.param]
    path = Path(shutil.copytree(tiny(family), tmp_path / "model"))
    config = json.loads((path / "config.json").read_text())
    config |= dict.fromkeys(set(config) & {"n_group", "topk_group"}, 1)
    (path / "config.json").write_text(json.dumps(config | changes))
    return path


def measured(model: Path) -> CalibrationStats:
    """Made-up stats of the model, which a quantised one cannot give here, through their file."""
    stats = synthetic.stats(open_model(model).facts)
    stats.save(model.parent / "stats.safetensors")
    return CalibrationStats.load(model.parent / "stats.safetensors")


def accepted(model: Path, plan: PrunePlan) -> set[str]:
    """The options with which export would write the plan; each refusal advises none of others."""
    found, advised = set(), set()
    for option in ("per_layer", "pad"):
        name = f"--{option.replace('_', '-')}"
        try:
            prepare(model, plan=plan, output=model.parent / "out", **{option: True})
            found.add(name)
        except UnsupportedModelError as problem:
            way_out = str(problem).rpartition("Use ")[2]
            assert "--allocation uniform" in way_out
            advised |= {other for other in ("--per-layer", "--pad") if other in way_out}
        except UsageError as problem:
            assert "Use --pad" in str(problem)
    assert advised <= found
    return found


@pytest.mark.parametrize(("model", "name"), [(name, name) for name in MODELS], indirect=["model"])
def test_advice_and_export_agree(model: Path, name: str) -> None:
    stats = measured(model)
    options: dict[str, Any] = {"ratio": 0.3, "method": "reap", "allocation": "global"}
    plan = moeprune.plan(stats, **options)
    assert plan.uniform_count is None
    ways = MODELS[name][2]
    assert accepted(model, plan) == ways
    (warning,) = [line for line in plan.warnings if "different numbers" in line]
    assert {way for way in ("--per-layer", "--pad") if f"with {way}" in warning} == ways
    assert ("no export can write that" in warning) == (not ways)
    for target in ("transformers", "vllm", "llama.cpp", "mlx", "any"):
        loads = "--pad" in ways or (target == "transformers" and "--per-layer" in ways)
        if loads:
            aimed = moeprune.plan(stats, target=target, **options)
            assert accepted(model, aimed) >= ({"--pad"} if target != "transformers" else set())
            continue
        with pytest.raises(UsageError, match=f"--target .*{'' if target == 'any' else target}"):
            moeprune.plan(stats, target=target, **options)


@pytest.mark.parametrize("model", ["quantised"], indirect=True)
def test_the_reason_is_told_and_even_plans_hear_nothing_of_it(model: Path) -> None:
    stats = measured(model)
    plan = moeprune.plan(stats, ratio=0.3, method="reap", allocation="global")
    assert "fbgemm_fp8 from the one count" in plan.warnings[-1]
    assert "Plan with --allocation uniform" in plan.warnings[-1]
    with pytest.raises(UsageError) as caught:
        moeprune.plan(stats, ratio=0.3, method="reap", allocation="global", target="vllm")
    assert "--target transformers" not in str(caught.value)
    even = moeprune.plan(stats, ratio=0.3, method="reap")
    assert not [line for line in even.warnings if "export" in line]

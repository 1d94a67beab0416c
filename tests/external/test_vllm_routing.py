"""vLLM with the plugin: k₁, k₂ and the counts of layers that config.json states under moeprune.

    bash tests/external/install.sh vllm
    python -m pytest -m external tests/external/test_vllm_routing.py

Log-probabilities against the live policy in transformers, and against a folder's own code. vLLM
finds the plugin as it does in an installation, by the entry point of pyproject.toml; moeprune's
dependencies are not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published import EXPERTS, published_checkpoint
from test_loaders import HERE, INSTALLED, TOKENS, Case, prune

import moeprune
from moeprune.architectures import layout_of
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.policy import RoutingPolicy
from moeprune.stages.policies import policy_applied

pytestmark = pytest.mark.external

ROOT = HERE.parents[1]
TOLERANCE = 1e-4
NATIVE: dict[str, Any] = {}
CODE = {"model_impl": "transformers", "trust_remote_code": True}
NO_CODE = {"model_impl": "transformers"}


@dataclass(frozen=True)
class Routed:
    """A model and the k₁ and k₂ that it is exported with."""

    family: str
    k1: int
    k2: int
    overrides: dict[str, Any] = field(default_factory=dict)


CASES = {
    "qwen3_moe": Routed("qwen3_moe", 2, 6),
    "qwen3_moe, k2 of all": Routed("qwen3_moe", 2, EXPERTS),
    "qwen3_moe, k2 < k1": Routed("qwen3_moe", 4, 2),
    "mixtral": Routed("mixtral", 1, 3),
    "olmoe": Routed("olmoe", 2, 5),  # it does not renormalise: k2 brings a denominator
    "granitemoe": Routed("granitemoe", 2, 6),
    "glm4_moe": Routed("glm4_moe", 2, 6),  # sigmoid, a bias for the choice, a factor
    "glm4_moe, groups": Routed("glm4_moe", 2, 6, {"n_group": 3, "topk_group": 2}),
}


@dataclass(frozen=True)
class Made:
    folder: Path
    native: np.ndarray  # of transformers without the folder's code: what the source computes
    wanted: np.ndarray


def logprobs(folder: Path, policy: RoutingPolicy | None = None, **options: Any) -> np.ndarray:
    """(tokens - 1, vocabulary) of transformers, by the live policy."""
    from transformers import AutoModelForCausalLM

    index = CheckpointIndex.open(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager", **options
    ).eval()
    with torch.no_grad():
        if policy is None:
            logits = model(torch.tensor([TOKENS]), use_cache=False).logits
        else:
            with policy_applied(model, layout_of(index.config, index.tensors), policy):
                logits = model(torch.tensor([TOKENS]), use_cache=False).logits
    return logits[0, :-1].double().log_softmax(-1).numpy()


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    known: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in known:
            case, folder = CASES[name], tmp_path_factory.mktemp("routed")
            source = published_checkpoint(case.family, folder / "source", **case.overrides)
            policy = RoutingPolicy(k1=case.k1, k2=case.k2)
            out = moeprune.export(source, output=folder / "out", k1=case.k1, k2=case.k2)
            known[name] = Made(out, logprobs(source), logprobs(source, policy))
        return known[name]

    return get


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the path of Python, in which moeprune is installed without what it needs."""
    folder = tmp_path_factory.mktemp("installed")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = folder / f"moeprune-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: moeprune\nVersion: {project['version']}\n"
    )
    points = project["entry-points"]["vllm.general_plugins"].items()
    (about / "entry_points.txt").write_text(
        "\n".join(["[vllm.general_plugins]", *(f"{name} = {value}" for name, value in points)])
    )
    (folder / "moeprune").symlink_to(ROOT / "moeprune")
    return folder


def start(
    folder: Path, result: Path, options: dict[str, Any], plugin: Path | None
) -> subprocess.CompletedProcess[str]:
    python = INSTALLED / "vllm" / "bin" / "python"
    if not python.exists():
        pytest.fail(
            f"vllm is not installed: there is no {python}; run 'bash tests/external/install.sh "
            "vllm', or set MOEPRUNE_LOADERS to where it is",
            pytrace=False,
        )
    ids, chosen = result.with_suffix(".ids"), result.with_suffix(".options")
    ids.write_text(json.dumps(TOKENS))
    chosen.write_text(json.dumps(options))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["VLLM_CACHE_ROOT"] = str(result.parents[1] / "vllm")  # what it compiled, for all
    environment["HF_MODULES_CACHE"] = str(result.parent / "modules")
    environment["PYTHONPATH"] = str(plugin or "")
    command = [python, "-s", "-P", HERE / "vllm_logits.py", folder, ids, result, chosen]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)


def served(folder: Path, result: Path, options: dict[str, Any], plugin: Path | None) -> np.ndarray:
    """(tokens - 1, vocabulary) log-probabilities of vLLM."""
    ended = start(folder, result, options, plugin)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    assert ("moeprune: " in ended.stdout + ended.stderr) == (plugin is not None)
    return np.load(result)["logprobs"]


def check(found: np.ndarray, wanted: np.ndarray, other: np.ndarray, record: Any) -> None:
    difference = np.abs(found - wanted).max()
    record("figure", f"{difference:.1e}; from the other one {np.abs(found - other).max():.1f}")
    assert difference <= TOLERANCE
    assert np.abs(found - other).max() > 1


@pytest.mark.parametrize("name", CASES)
def test_computes_what_the_live_policy_computes(
    name: str,
    exported: Callable[[str], Made],
    plugin: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    made = exported(name)
    found = served(made.folder, tmp_path / "seen.npz", NATIVE, plugin)
    check(found, made.wanted, made.native, record_property)


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_without_the_plugin_it_is_the_native_model(
    name: str,
    exported: Callable[[str], Made],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    made = exported(name)
    found = served(made.folder, tmp_path / "seen.npz", NATIVE, None)
    check(found, made.native, made.wanted, record_property)


@pytest.mark.parametrize("with_plugin", [False, True])
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe"])
def test_the_code_in_the_folder_routes_once(
    name: str,
    with_plugin: bool,
    exported: Callable[[str], Made],
    plugin: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """vLLM's transformers backend runs it, and the plugin leaves it alone."""
    made = exported(name)
    result = tmp_path / "seen.npz"
    found = served(made.folder, result, CODE, plugin if with_plugin else None)
    check(found, made.wanted, made.native, record_property)


def test_the_transformers_backend_without_that_code(
    exported: Callable[[str], Made],
    plugin: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """There vLLM routes by itself, and the plugin acts."""
    made = exported("qwen3_moe")
    found = served(made.folder, tmp_path / "seen.npz", NO_CODE, plugin)
    check(found, made.wanted, made.native, record_property)


@pytest.mark.parametrize("options", [NATIVE, CODE], ids=["native", "transformers"])
@pytest.mark.parametrize("family", ["qwen3_moe", "glm4_moe"])
def test_layers_with_different_counts(
    family: str,
    options: dict[str, Any],
    plugin: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Without k1 and k2 and with them."""
    out, counts = prune(Case(family), tmp_path, per_layer=True)
    assert len(set(counts)) > 1
    plain = logprobs(out, trust_remote_code=True)
    plan = json.loads((out / "moeprune.json").read_text())["plan"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    routed = moeprune.export(
        tmp_path / "source",
        plan=tmp_path / "plan.json",
        output=tmp_path / "routed",
        per_layer=True,
        k1=2,
        k2=4,
    )
    wanted = logprobs(routed, trust_remote_code=True)
    check(served(out, tmp_path / "a.npz", options, plugin), plain, wanted, record_property)
    check(served(routed, tmp_path / "b.npz", options, plugin), wanted, plain, record_property)


def test_compiled(
    exported: Callable[[str], Made],
    plugin: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """What vLLM compiled and kept without the plugin is not taken for the model with it."""
    made = exported("qwen3_moe")
    for kind, installed in (("native", None), ("routed", plugin), ("again", None)):
        found = served(made.folder, tmp_path / f"{kind}.npz", {"enforce_eager": False}, installed)
        pair = (made.wanted, made.native) if installed else (made.native, made.wanted)
        check(found, *pair, record_property)

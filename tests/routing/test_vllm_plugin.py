"""The entry point, and what it changes in a package that has vLLM's functions.

The package here is a small one of our own; vLLM itself is run by tests/external.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeprune.errors import UnsupportedModelError
from moeprune.routing import vllm_plugin

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "config.py": """
CURRENT = []

def get_current_vllm_config():
    return CURRENT[-1]
""",
    "model_executor/model_loader/utils.py": """
from vllm.config import CURRENT

def initialize_model(vllm_config, *, prefix="", model_class=None, model_config=None):
    CURRENT.append(vllm_config)
    try:
        return model_class(vllm_config)
    finally:
        CURRENT.pop()
""",
    "model_executor/models/utils.py": """
def make_layers(num_hidden_layers, layer_fn, prefix):
    return [layer_fn(prefix=f"{prefix}.{i}") for i in range(num_hidden_layers)]
""",
    "model_executor/layers/fused_moe/router/router_factory.py": """
from types import SimpleNamespace

def create_fused_moe_router(
    top_k, global_num_experts, renormalize=True, custom_routing_function=None, eplb_state=None
):
    return SimpleNamespace(top_k=top_k, custom_routing_function=custom_routing_function)
""",
    "model_executor/layers/fused_moe/layer.py": """
from types import SimpleNamespace
from vllm.model_executor.layers.fused_moe.router.router_factory import create_fused_moe_router

def FusedMoEFactory(
    num_experts, top_k, prefix="", router=None, custom_routing_function=None, runner_args=None,
    enable_eplb=False, routed_experts_cls=None, hash_indices_table=None, zero_expert_type=None,
):
    router = create_fused_moe_router(top_k=top_k, global_num_experts=num_experts)
    return SimpleNamespace(
        router=router, num_experts=num_experts, top_k=top_k, layer_name=prefix,
        routed_experts=SimpleNamespace(quant_method=object(), forward_monolithic=None),
    )
""",
    "model_executor/layers/fused_moe/__init__.py": """
from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory
""",
    "models.py": """
from vllm.model_executor.layers.fused_moe import FusedMoEFactory
from vllm.model_executor.models.utils import make_layers

class Model:
    more = {}

    def __init__(self, vllm_config):
        config = vllm_config.model_config.hf_config
        self.layers = make_layers(
            2,
            lambda prefix: FusedMoEFactory(
                num_experts=config.num_experts, top_k=3, prefix=f"{prefix}.mlp", **self.more
            ),
            prefix="model.layers",
        )

    def named_buffers(self):
        return []

class Dense(Model):
    def __init__(self, vllm_config):
        pass
""",
}


def write(folder: Path, **changed: str) -> None:
    for name, text in {**SOURCES, **changed}.items():
        file = folder / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for parent in file.relative_to(folder).parents[:-1]:
            folder.joinpath(parent, "__init__.py").touch()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    vllm_plugin.unregister()
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def build(kind: str = "Model", more: Any = None, **block: Any) -> Any:
    """A model of the package, as its loader builds one."""
    loader = importlib.import_module("vllm.model_executor.model_loader.utils")
    model_class = getattr(importlib.import_module("vllm.models"), kind)
    model_class.more = more or {}
    config = SimpleNamespace(num_experts=6)
    if block:
        config.moeprune = {"format": 1, **block}
    model_config = SimpleNamespace(hf_config=config, hf_text_config=config, runner_type="generate")
    vllm_config = SimpleNamespace(model_config=model_config, additional_config={})
    model = loader.initialize_model(vllm_config, model_class=model_class)
    assert config.num_experts == 6
    # It is part of what vLLM keys its compiled code by, as JSON.
    model.further = json.loads(json.dumps(vllm_config.additional_config))
    return model


def counts(model: Any) -> list[int]:
    return [layer.num_experts for layer in model.layers]


def test_the_entry_point_leads_to_register() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["moeprune"].partition(":")
    assert getattr(importlib.import_module(module), name) is vllm_plugin.register


def test_registering_imports_nothing_heavy(package: Path) -> None:
    program = (
        "import sys; from moeprune.routing import vllm_plugin; vllm_plugin.register(); "
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'numpy', 'vllm'}))"
    )
    for path in (f"{package}", ""):  # where vLLM is installed, and where it is not
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import sys; sys.path[:0] = [{str(ROOT)!r}, {path!r}]; {program}",
            ],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_an_ordinary_model_is_built_as_before(package: Path) -> None:
    vllm_plugin.register()
    for layer in build().layers:
        assert (layer.top_k, layer.num_experts, layer.router.top_k) == (3, 6, 3)
        assert layer.router.custom_routing_function is None
        assert layer.routed_experts.forward_monolithic is None
    build("Dense")


@pytest.mark.parametrize("early", [False, True])
def test_the_block_is_honoured(package: Path, early: bool) -> None:
    """Whether or not vLLM's modules were imported before."""
    if early:
        build()
    vllm_plugin.register()
    vllm_plugin.register()
    model = build(k1=2, k2=5, renormalises=True, experts_per_layer=[6, 4])
    assert counts(model) == [6, 4]
    for layer in model.layers:
        assert (layer.top_k, layer.router.top_k) == (2, 2)
        routers = layer.router.custom_routing_function.args[0]
        assert {k: router.top_k for k, router in routers.items()} == {
            k: k for k in {2, min(5, layer.num_experts)}
        }
        assert all(router.custom_routing_function is None for router in routers.values())
        with pytest.raises(UnsupportedModelError, match="the kernel of object routes by itself"):
            layer.routed_experts.forward_monolithic(x=0, router_logits=0)
    assert counts(build()) == [6, 6] and build().layers[0].top_k == 3
    assert build().further == {} != model.further != build(k1=2, k2=4).further


def test_unregistering_leaves_vllm_as_it_was(package: Path) -> None:
    build()
    names = [name for name in sys.modules if name.startswith("vllm")]
    before = {name: dict(vars(sys.modules[name])) for name in names}
    finders = list(sys.meta_path)
    vllm_plugin.register()
    build(k1=2, k2=5)
    assert {name: dict(vars(sys.modules[name])) for name in names} != before
    vllm_plugin.unregister()
    assert {name: dict(vars(sys.modules[name])) for name in names} == before
    assert sys.meta_path == finders
    assert build(k1=2, k2=5).layers[0].top_k == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"router": object()}, "brings a router of its own"),
        ({"zero_expert_type": "identity"}, "experts without weights"),
        ({"runner_args": {"moe_state": 0}}, "code that knows neither. Add --trust-remote-code"),
    ],
)
def test_a_layer_that_cannot_follow_is_refused(package: Path, more: Any, message: str) -> None:
    vllm_plugin.register()
    build(more=more)
    with pytest.raises(UnsupportedModelError, match=message):
        build(more=more, k1=2, k2=5)


def test_a_model_that_no_wrapper_reaches_is_refused(package: Path) -> None:
    vllm_plugin.register()
    with pytest.raises(UnsupportedModelError, match="vLLM's Dense has no router"):
        build("Dense", k1=2, k2=5)


@pytest.mark.parametrize("kind", ["Model", "Dense"])  # with vLLM's experts, and with the family's
def test_code_in_the_folder_is_left_alone(
    kind: str, package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vllm_plugin.register()
    build()
    models = importlib.import_module("vllm.models")
    models.Model.named_buffers = lambda self: [(f"layers.{i}.gate.moeprune_k2", 5) for i in (0, 1)]
    with caplog.at_level(logging.INFO):
        model = build(kind, more={"runner_args": {"moe_state": 0}}, k1=2, k2=5)
    assert all(layer.top_k == 3 for layer in getattr(model, "layers", []))
    assert f"k2 = 5 in 2 MoE layers of {kind}, by the code in its folder." in caplog.text


def test_counts_that_a_model_does_not_follow_are_refused(package: Path) -> None:
    models = package / "vllm" / "models.py"
    models.write_text(SOURCES["models.py"].replace("= make_layers(", "= own(") + OWN_LOOP)
    vllm_plugin.register()
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.mlp: vLLM builds 6 experts"):
        build(experts_per_layer=[6, 4])


OWN_LOOP = """
def own(n, layer_fn, prefix):
    return [layer_fn(prefix=f"{prefix}.{i}") for i in range(n)]
"""

UNKNOWN = {
    "a parameter less": {
        "model_executor/layers/fused_moe/layer.py": SOURCES[
            "model_executor/layers/fused_moe/layer.py"
        ].replace("custom_routing_function=None,", "")
    },
    "a function less": {
        "model_executor/models/utils.py": SOURCES["model_executor/models/utils.py"]
        + "make_some = make_layers; del make_layers\n",
        "models.py": SOURCES["models.py"].replace("import make_layers", "import make_some")
        .replace("= make_layers(", "= make_some("),
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", UNKNOWN)
def test_an_unknown_vllm_serves_only_ordinary_models(
    kind: str, package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(package, **UNKNOWN[kind])
    vllm_plugin.register()
    assert counts(build()) == [6, 6]
    with pytest.raises(UnsupportedModelError, match="not one that moeprune knows"):
        build(k1=2, k2=5)
    (line,) = {record.getMessage() for record in caplog.records}
    assert "does not know this version of vLLM" in line and "\n" not in line


def test_a_vllm_without_these_modules_is_told_at_once(
    package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (package / "vllm/model_executor/layers/fused_moe/layer.py").unlink()
    with caplog.at_level(logging.WARNING):
        vllm_plugin.register()
    assert "vllm.model_executor.layers.fused_moe.layer" in caplog.text

"""vLLM serves what moeprune exports: k₁ and k₂, and layers with different numbers of experts.

vLLM calls :func:`register` by the entry point ``vllm.general_plugins`` in each of its processes.
Nothing of vLLM or torch is imported here: four functions of vLLM are wrapped when vLLM itself
imports their modules, so that a process which builds no model stays as light as it was. For a model
whose config.json has no ``moeprune`` block each of them does what it did.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from moeprune.routing import vllm_layers, vllm_routers

# Below vLLM's own logger, whose handlers and level are those that people see.
log = logging.getLogger("vllm.moeprune")

# Module and function of vLLM, what wraps it, and the parameters without which it is another one.
# No class is changed, and these are all the places: where a model is built, its decoder layers one
# by one, an MoE layer, and the router of one.
_WRAPPED: dict[tuple[str, str], tuple[Callable[..., Any], set[str]]] = {
    ("vllm.model_executor.model_loader.utils", "initialize_model"): (
        vllm_layers.model_builder,
        {"vllm_config", "model_config"},
    ),
    ("vllm.model_executor.models.utils", "make_layers"): (
        vllm_layers.layer_maker,
        {"num_hidden_layers", "layer_fn", "prefix"},
    ),
    ("vllm.model_executor.layers.fused_moe.layer", "FusedMoEFactory"): (
        vllm_layers.moe_factory,
        {"num_experts", "top_k", "prefix", "router", "custom_routing_function", "runner_args"},
    ),
    ("vllm.model_executor.layers.fused_moe.router.router_factory", "create_fused_moe_router"): (
        vllm_routers.router_factory,
        {"top_k", "global_num_experts", "renormalize", "custom_routing_function", "eplb_state"},
    ),
}


def register() -> None:
    """Wrap the functions, now or when vLLM imports them. A second call changes nothing."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations or _plugins():
        return
    plugin = _Plugin(Path(found.submodule_search_locations[0]))
    sys.meta_path.insert(0, plugin)
    for name in {module for module, _ in _WRAPPED}:
        if name in sys.modules:
            plugin.wrap(sys.modules[name])


def unregister() -> None:
    """Give vLLM its own functions back."""
    for plugin in _plugins():
        sys.meta_path.remove(plugin)
        plugin.undo()


def _plugins() -> list[_Plugin]:
    return [finder for finder in sys.meta_path if isinstance(finder, _Plugin)]


class _Plugin(MetaPathFinder):
    """Wraps the functions of a module as soon as Python has run it."""

    def __init__(self, vllm: Path) -> None:
        self._replaced: list[tuple[ModuleType, str, Any]] = []
        self._finding: set[str] = set()
        # Shared with the wrappers: a model that needs the plugin is refused for any of them.
        self._unknown: list[str] = [
            name
            for name in sorted({module for module, _ in _WRAPPED})
            if not vllm.parent.joinpath(*name.split(".")).with_suffix(".py").is_file()
        ]
        if self._unknown:
            self._warn()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that others find, of a module that is to be wrapped once it has run."""
        if fullname in self._finding or all(fullname != module for module, _ in _WRAPPED):
            return None
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_wrap(module: ModuleType) -> None:
            run(module)
            self.wrap(module)

        vars(spec.loader)["exec_module"] = run_and_wrap  # of this one loader
        return spec

    def wrap(self, module: ModuleType) -> None:
        """Replace the functions of ``module``, also where others have imported them by name."""
        for (where, name), (wrapper, needs) in _WRAPPED.items():
            if where != module.__name__:
                continue
            original = getattr(module, name, None)
            if not callable(original) or needs - set(inspect.signature(original).parameters):
                self._unknown.append(f"{where}.{name}")
                self._warn()
                continue
            wrapped = wrapper(original, self._unknown)
            for holder in list(sys.modules.values()):
                if vars(holder).get(name) is original:
                    self._replaced.append((holder, name, original))
                    setattr(holder, name, wrapped)

    def undo(self) -> None:
        """Put back what was replaced."""
        while self._replaced:
            holder, name, original = self._replaced.pop()
            setattr(holder, name, original)

    def _warn(self) -> None:
        log.warning(
            "moeprune does not know this version of vLLM (%s): models with a moeprune block in "
            "config.json cannot be served as they are meant. Update moeprune.",
            self._unknown[-1],
        )

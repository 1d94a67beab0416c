"""The parts of a model that are loaded and freed as one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from moeprune.observe.layers import MoeLayer


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A module that is called, with all that lies in it.

    Attributes:
        name: its path in the model.
        module: itself.
        tensors: names of the parameters and buffers that files hold, as in ``state_dict``.
        layer: whether it is a layer of a stack that holds MoE layers.
        routed: whether it holds experts that are observed.
    """

    name: str
    module: nn.Module
    tensors: tuple[str, ...]
    layer: bool = False
    routed: bool = False


def units_of(root: nn.Module, layers: Sequence[MoeLayer]) -> tuple[tuple[Unit, ...], Unit]:
    """Divide a model.

    A unit is a layer of a stack that holds MoE layers, dense ones too; elsewhere, the outermost
    module that owns a tensor itself or is an entry of a list.

    Args:
        root: the model.
        layers: its MoE layers.

    Returns:
        The units in the order of the model's modules, and what belongs to none: the tensors of
        modules that hold whole stacks, which stay in memory.
    """
    paths = {module: name for name, module in root.named_modules()}
    inside = {layer_path(paths[layer.experts]) for layer in layers}
    stacks = {path.rpartition(".")[0] for path in inside}
    above = {
        prefix
        for stack in stacks
        for prefix in ("", *(stack[: dot.start()] for dot in re.finditer(r"\.", stack)), stack)
    }
    names = list(root.state_dict(keep_vars=True))
    found: list[Unit] = []
    for path, module, layer in _walk(root, "", above, stacks):
        start = f"{path}."
        tensors = tuple(name for name in names if name.startswith(start))
        if tensors:
            found.append(Unit(path, module, tensors, layer, path in inside))
    taken = {name for unit in found for name in unit.tensors}
    return tuple(found), Unit("", root, tuple(name for name in names if name not in taken))


def layer_path(path: str) -> str:
    """Path of the layer that a module of an MoE layer lies in."""
    found = re.match(r"(?:.*?\.)?(?:layers|blocks)\.\d+(?=\.)", path)
    assert found is not None, path  # moe_layers looks for nothing else
    return found[0]


def _walk(
    module: nn.Module, path: str, above: set[str], stacks: set[str]
) -> Iterator[tuple[str, nn.Module, bool]]:
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        layer = path in stacks
        entry = isinstance(module, nn.ModuleList) and type(child).forward is not nn.Module.forward
        if layer or (inner not in above and (entry or _owns(child))):
            yield inner, child, layer
        else:
            yield from _walk(child, inner, above, stacks)


def _owns(module: nn.Module) -> bool:
    return any(
        tensor is not None and name not in module._non_persistent_buffers_set
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
    )

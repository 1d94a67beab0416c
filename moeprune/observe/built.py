"""transformers' own classes of a model, built without memory, and what in them counts experts.

Models are built on the meta device. Built twice with two numbers of experts, the tensors that
differ are the experts' and the routers'.
"""

from __future__ import annotations

import copy
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moeprune.errors import UnsupportedModelError
from moeprune.observe.layers import ELSEWHERE
from moeprune.observe.load import auto_class
from moeprune.observe.quiet import quiet

KeyPath = tuple[str, ...]
Config = Mapping[str, Any]
WAY_OUT = "Add a family file (docs/extend.md)."

_IN_LAYER = re.compile(r"(?P<layer>(?:.*\.)?(?:layers|blocks)\.(?P<number>\d+))\.(?P<name>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShapes:
    """What of one MoE layer depends on the number of experts, in memory.

    Attributes:
        routers: shapes of the router's tensors, sorted.
        expert_values: values in all experts.
    """

    routers: tuple[tuple[int, ...], ...]
    expert_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The MoE blocks of a model: names after ``layers.<i>.``, and the first one's path."""

    path: str
    name: str
    experts: str
    router: str
    layers: Mapping[int, LayerShapes]


def known_to_transformers(model_type: object) -> bool:
    """Whether this transformers has a config class of that name."""
    from transformers import CONFIG_MAPPING

    return isinstance(model_type, str) and model_type in CONFIG_MAPPING


def build(config: Config) -> tuple[Any, nn.Module]:
    """What transformers makes of config.json: its own config, and the model of it."""
    from transformers import AutoConfig

    with quiet():
        with tempfile.TemporaryDirectory() as folder:  # read as a loader reads it, from a file
            (Path(folder) / "config.json").write_text(json.dumps(_plain(config)), encoding="utf-8")
            made = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        return made, on_meta(made)


def on_meta(made: Any, **options: Any) -> nn.Module:
    """The model of a config of transformers, without memory for a single weight."""
    with torch.device("meta"):
        model = auto_class(made).from_config(made, dtype=torch.float32, **options)
    built: nn.Module = model.eval()
    return built


def _plain(config: Config) -> dict[str, Any]:
    """A copy without what the stored format and the checkpoint's own code add."""
    return {
        key: _plain(value) if isinstance(value, Mapping) else copy.deepcopy(value)
        for key, value in config.items()
        if key not in ("quantization_config", "auto_map")
    }


def with_values(config: Config, values: Mapping[KeyPath, Any]) -> dict[str, Any]:
    """A copy of config.json with other values at some paths."""
    changed = copy.deepcopy(dict(config))
    for path, value in values.items():
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    return changed


def differing_tensors(
    model: nn.Module, other: nn.Module, count_keys: Sequence[KeyPath]
) -> dict[str, tuple[int, ...]]:
    """Name -> shape, of each tensor that depends on the number of experts."""
    mine = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in other.state_dict().items()}
    lone = sorted(mine.keys() ^ theirs.keys())
    if lone:
        raise UnsupportedModelError(
            f"its experts are modules of their own in memory ({lone[0]}). {WAY_OUT}"
        )
    found = {name: shape for name, shape in mine.items() if theirs[name] != shape}
    if not found:
        stated = ", ".join(".".join(path) for path in count_keys)
        raise UnsupportedModelError(f"no tensor depends on {stated}. {WAY_OUT}")
    return found


def find_block(model: nn.Module, differing: Mapping[str, tuple[int, ...]], *, count: int) -> Block:
    """The block that holds experts and router in every MoE layer.

    Args:
        model: built with ``count`` experts.
        differing: name -> shape, of each tensor that depends on ``count``.
        count: E.

    Raises:
        UnsupportedModelError: the experts are not one module that transformers' registry serves,
            their router is not one module beside it, or another tensor depends on their number.
    """
    modules = dict(model.named_modules())
    experts = [
        path
        for path, module in modules.items()
        # What transformers' use_experts_implementation gives every instance of a class.
        if hasattr(module, "is_transposed") and hasattr(module, "has_gate")
        if not ELSEWHERE.search(path) and any(name.startswith(f"{path}.") for name in differing)
    ]
    if not experts:
        raise UnsupportedModelError(
            "transformers' registry of experts functions serves none of its modules. " + WAY_OUT
        )
    at = {path: _IN_LAYER.fullmatch(path) for path in experts}
    names = sorted({found["name"] if found else path for path, found in at.items()})
    places = [found for found in at.values() if found is not None]
    if len(names) != 1 or len(places) != len(experts) or "." not in names[0]:
        raise UnsupportedModelError(
            f"its experts are {', '.join(names)}, not one module of a block of every MoE layer. "
            + WAY_OUT
        )
    block, _, last = names[0].rpartition(".")
    owners = {f"{found['layer']}.{block}": int(found["number"]) for found in places}
    if len(set(owners.values())) != len(owners):
        raise UnsupportedModelError(f"two stacks of layers have experts. {WAY_OUT}")
    routers: set[str] = set()
    shapes: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    values: dict[int, int] = defaultdict(int)
    for name, shape in differing.items():
        owner = next((path for path in owners if name.startswith(f"{path}.")), None)
        if owner is None:
            raise UnsupportedModelError(
                f"{name} {list(shape)} depends on the number of experts and lies in no block that "
                f"has them. {WAY_OUT}"
            )
        child, _, rest = name.removeprefix(f"{owner}.").partition(".")
        if child == last and len(shape) > 1:
            if shape[0] != count:
                raise UnsupportedModelError(
                    f"{name} is {list(shape)}: its first axis is not the {count} experts. "
                    + WAY_OUT
                )
            values[owners[owner]] += prod(shape)
            continue
        shapes[owners[owner]].append(shape)
        if rest and child != last:
            routers.add(child)
    if len(routers) != 1:
        raise UnsupportedModelError(
            f"its blocks have {len(routers)} routers beside the experts "
            f"({', '.join(sorted(routers)) or 'none'}). {WAY_OUT}"
        )
    return Block(
        path=min(owners, key=lambda path: owners[path]),
        name=block,
        experts=last,
        router=routers.pop(),
        layers={
            number: LayerShapes(routers=tuple(sorted(shapes[number])), expert_values=values[number])
            for number in sorted(owners.values())
        },
    )

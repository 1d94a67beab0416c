"""Describe a family that nobody listed, from transformers' own classes of it.

The model is built twice on the meta device, with two numbers of experts: the tensors that differ
are the experts' and the routers'. One block is then run on random numbers (see ``probe``). Nothing
is guessed: what cannot be told apart is refused.
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
from moeprune.observe.probe import Heard, gating_of, keeps_to_groups, listen
from moeprune.observe.quiet import foreign_errors, quiet

KeyPath = tuple[str, ...]
Config = Mapping[str, Any]

_IN_LAYER = re.compile(r"(?P<layer>(?:.*\.)?(?:layers|blocks)\.(?P<number>\d+))\.(?P<name>.+)")
_WAY_OUT = "Add a family file (docs/extend.md)."


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKeys:
    """Where config.json states what matters here.

    Attributes:
        count: path of each key that states the expert count; never empty.
        top_k: spellings of the experts run per token, at the same level as the first of ``count``.
        groups: spellings of the number of router groups.
        top_groups: spellings of the groups a token may choose from.
    """

    count: Sequence[KeyPath]
    top_k: Sequence[str]
    groups: Sequence[str]
    top_groups: Sequence[str]

    @property
    def level(self) -> KeyPath:
        """Path of the level that states them all."""
        return tuple(self.count[0][:-1])


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
class InferredFamily:
    """The fields of a family file, and the layers that the model has.

    Attributes:
        gating: from logits to scores.
        experts: name of the experts module after ``layers.<i>.``.
        router: name of the router module after ``layers.<i>.``.
        observer: how calibration sees the experts.
        groups: whether the router is group-limited where config.json says so.
        scale: config key of the block's factor, or None.
        defaults: values of the keys that config.json may leave out.
        layers: number -> what it holds.
    """

    gating: str
    experts: str
    router: str
    observer: str
    groups: bool
    scale: str | None
    defaults: Mapping[str, Any]
    layers: Mapping[int, LayerShapes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
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


def infer_family(config: Config, *, keys: ConfigKeys) -> InferredFamily:
    """Describe the family of ``config``.

    Args:
        config: config.json, parsed; transformers knows its ``model_type``.
        keys: where it states what.

    Raises:
        UnsupportedModelError: something cannot be told; the message names it.
    """
    what = f"model_type {config['model_type']!r} is not in the list of families"
    with foreign_errors(
        f"{what}, and transformers cannot build it", _WAY_OUT, error=UnsupportedModelError
    ):
        try:
            return _infer(config, keys)
        except UnsupportedModelError as problem:
            raise UnsupportedModelError(f"{what}, and cannot be inferred: {problem}") from problem


def _infer(config: Config, keys: ConfigKeys) -> InferredFamily:
    count = _get(config, keys.count[0])
    made, model = _build(config)
    # Twice as many: whatever divided the experts (groups, …) divides them again.
    _, other = _build(_with(config, dict.fromkeys(keys.count, 2 * count)))
    block = _find_block(model, _differing(model, other, keys), count=count)
    heard = _hear(model, block, made, count=count)
    gating, observer = gating_of(heard)
    level = _level(made, keys.level)
    stated = level.to_dict()
    scale = None
    if abs(heard.scale - 1) > 1e-6:
        scale = _scale_key(config, keys, stated, block, count=count, scale=heard.scale)
    defaults = _defaults(level, keys)
    if scale is not None:
        defaults[scale] = type(level)().to_dict().get(scale, stated[scale])
    return InferredFamily(
        gating=gating,
        experts=f"{block.name}.{block.experts}",
        router=f"{block.name}.{block.router}",
        observer=observer,
        groups=_limited(stated, keys, heard),
        scale=scale,
        defaults=defaults,
        layers=block.layers,
    )


def _build(config: Config) -> tuple[Any, nn.Module]:
    """The config and the model of transformers, without memory for a single weight."""
    from transformers import AutoConfig

    with quiet():
        with tempfile.TemporaryDirectory() as folder:  # read as a loader reads it, from a file
            (Path(folder) / "config.json").write_text(json.dumps(_plain(config)), encoding="utf-8")
            made = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        return made, _on_meta(made)


def _on_meta(made: Any, **options: Any) -> nn.Module:
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


def _differing(model: nn.Module, other: nn.Module, keys: ConfigKeys) -> dict[str, tuple[int, ...]]:
    """Name -> shape, of each tensor that depends on the number of experts."""
    mine = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in other.state_dict().items()}
    lone = sorted(mine.keys() ^ theirs.keys())
    if lone:
        raise UnsupportedModelError(
            f"its experts are modules of their own in memory ({lone[0]}). {_WAY_OUT}"
        )
    found = {name: shape for name, shape in mine.items() if theirs[name] != shape}
    if not found:
        stated = ", ".join(".".join(path) for path in keys.count)
        raise UnsupportedModelError(f"no tensor depends on {stated}. {_WAY_OUT}")
    return found


def _find_block(
    model: nn.Module, differing: Mapping[str, tuple[int, ...]], *, count: int
) -> _Block:
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
            "transformers' registry of experts functions serves none of its modules. " + _WAY_OUT
        )
    at = {path: _IN_LAYER.fullmatch(path) for path in experts}
    names = sorted({found["name"] if found else path for path, found in at.items()})
    places = [found for found in at.values() if found is not None]
    if len(names) != 1 or len(places) != len(experts) or "." not in names[0]:
        raise UnsupportedModelError(
            f"its experts are {', '.join(names)}, not one module of a block of every MoE layer. "
            + _WAY_OUT
        )
    block, _, last = names[0].rpartition(".")
    owners = {f"{found['layer']}.{block}": int(found["number"]) for found in places}
    if len(set(owners.values())) != len(owners):
        raise UnsupportedModelError(f"two stacks of layers have experts. {_WAY_OUT}")
    routers: set[str] = set()
    shapes: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    values: dict[int, int] = defaultdict(int)
    for name, shape in differing.items():
        owner = next((path for path in owners if name.startswith(f"{path}.")), None)
        if owner is None:
            raise UnsupportedModelError(
                f"{name} {list(shape)} depends on the number of experts and lies in no block that "
                f"has them. {_WAY_OUT}"
            )
        child, _, rest = name.removeprefix(f"{owner}.").partition(".")
        if child == last and len(shape) > 1:
            if shape[0] != count:
                raise UnsupportedModelError(
                    f"{name} is {list(shape)}: its first axis is not the {count} experts. "
                    + _WAY_OUT
                )
            values[owners[owner]] += prod(shape)
            continue
        shapes[owners[owner]].append(shape)
        if rest and child != last:
            routers.add(child)
    if len(routers) != 1:
        raise UnsupportedModelError(
            f"its blocks have {len(routers)} routers beside the experts "
            f"({', '.join(sorted(routers)) or 'none'}). {_WAY_OUT}"
        )
    return _Block(
        path=min(owners, key=lambda path: owners[path]),
        name=block,
        experts=last,
        router=routers.pop(),
        layers={
            number: LayerShapes(routers=tuple(sorted(shapes[number])), expert_values=values[number])
            for number in sorted(owners.values())
        },
    )


def _hear(model: nn.Module, block: _Block, made: Any, *, count: int) -> Heard:
    return listen(
        model.get_submodule(block.path),
        experts=block.experts,
        router=block.router,
        hidden_size=int(made.get_text_config().hidden_size),
        num_experts=count,
    )


def _limited(stated: Config, keys: ConfigKeys, heard: Heard) -> bool:
    """Whether config.json may limit the groups; checked where it does."""
    groups = next((stated[key] for key in keys.groups if key in stated), None)
    present = any(key in stated for key in keys.groups)
    if not present or not isinstance(groups, int) or groups <= 1:
        return present
    top = next((stated[key] for key in keys.top_groups if key in stated), None)
    return isinstance(top, int) and keeps_to_groups(heard, num_groups=groups, top_groups=top)


def _defaults(level: Any, keys: ConfigKeys) -> dict[str, Any]:
    """What transformers takes where config.json leaves a key out."""
    usual = type(level)().to_dict()
    found = {key: usual[key] for key in keys.top_k if type(usual.get(key)) is int}
    groups = {
        key: usual[key]
        for key in (*keys.groups, *keys.top_groups)
        if type(usual.get(key)) is int and usual[key] > 1
    }
    return found | groups


def _scale_key(
    config: Config, keys: ConfigKeys, stated: Config, block: _Block, *, count: int, scale: float
) -> str:
    """The key whose doubling doubles the factor of the block."""
    found = []
    for key, value in stated.items():
        if type(value) is not float or abs(value - scale) > 1e-4 * scale:
            continue
        made, model = _build(_with(config, {(*keys.level, key): 2 * value}))
        if abs(_hear(model, block, made, count=count).scale - 2 * scale) < 1e-3 * scale:
            found.append(key)
    if len(found) != 1:
        raise UnsupportedModelError(
            f"its blocks multiply what their experts add by {scale:.6g}, which "
            f"{'several keys' if found else 'no key'} of config.json states. {_WAY_OUT}"
        )
    return found[0]


def _level(made: Any, path: KeyPath) -> Any:
    for key in path:
        made = getattr(made, key)
    return made


def _get(config: Config, path: KeyPath) -> Any:
    value: Any = config
    for key in path:
        value = value[key]
    return value


def _with(config: Config, values: Mapping[KeyPath, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(config))
    for path, value in values.items():
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    return changed

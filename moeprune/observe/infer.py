"""Describe a family that nobody listed, from transformers' own classes of it.

The model is built twice on the meta device, with two numbers of experts: the tensors that differ
are the experts' and the routers'. One block is then run on random numbers (see ``probe``). Nothing
is guessed: what cannot be told apart is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from moeprune.errors import UnsupportedModelError
from moeprune.observe.built import (
    WAY_OUT,
    Block,
    Config,
    KeyPath,
    LayerShapes,
    build,
    differing_tensors,
    find_block,
    with_values,
)
from moeprune.observe.gating import gating_of, keeps_to_groups, renormalises
from moeprune.observe.probe import Heard, listen
from moeprune.observe.quiet import foreign_errors


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
class InferredFamily:
    """The fields of a family file, and the layers that the model has.

    Attributes:
        gating: from logits to scores.
        renormalises: ``always`` or ``never``, or "" where the weights do not tell.
        experts: name of the experts module after ``layers.<i>.``.
        router: name of the router module after ``layers.<i>.``.
        observer: how calibration sees the experts.
        groups: whether the router is group-limited where config.json says so.
        scale: config key of the block's factor, or None.
        defaults: values of the keys that config.json may leave out.
        layers: number -> what it holds.
    """

    gating: str
    renormalises: str
    experts: str
    router: str
    observer: str
    groups: bool
    scale: str | None
    defaults: Mapping[str, Any]
    layers: Mapping[int, LayerShapes]


def infer_family(
    config: Config, *, keys: ConfigKeys, agree: Callable[[Mapping[int, LayerShapes]], None]
) -> InferredFamily:
    """Describe the family of ``config``.

    Args:
        config: config.json, parsed; transformers knows its ``model_type``.
        keys: where it states what.
        agree: told what each MoE layer holds in memory, before anything is allocated; raises where
            the files hold something else.

    Raises:
        UnsupportedModelError: something cannot be told; the message names it.
    """
    what = f"model_type {config['model_type']!r} is not in the list of families"
    with foreign_errors(
        f"{what}, and transformers cannot build it",
        WAY_OUT,
        error=UnsupportedModelError,
        also=(ArithmeticError, AssertionError),
    ):
        try:
            return _infer(config, keys, agree)
        except UnsupportedModelError as problem:
            raise UnsupportedModelError(f"{what}, and cannot be inferred: {problem}") from problem


def _infer(
    config: Config, keys: ConfigKeys, agree: Callable[[Mapping[int, LayerShapes]], None]
) -> InferredFamily:
    count = _get(config, keys.count[0])
    made, model = build(config)
    # Twice as many: whatever divided the experts (groups, …) divides them again.
    _, other = build(with_values(config, dict.fromkeys(keys.count, 2 * count)))
    block = find_block(model, differing_tensors(model, other, keys.count), count=count)
    agree(block.layers)
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
        renormalises=renormalises(heard, gating=gating),
        experts=f"{block.name}.{block.experts}",
        router=f"{block.name}.{block.router}",
        observer=observer,
        groups=_limited(stated, keys, heard),
        scale=scale,
        defaults=defaults,
        layers=block.layers,
    )


def _hear(model: nn.Module, block: Block, made: Any, *, count: int) -> Heard:
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
    config: Config, keys: ConfigKeys, stated: Config, block: Block, *, count: int, scale: float
) -> str:
    """The key whose doubling doubles the factor of the block."""
    found = []
    for key, value in stated.items():
        if type(value) is not float or abs(value - scale) > 1e-4 * scale:
            continue
        made, model = build(with_values(config, {(*keys.level, key): 2 * value}))
        if abs(_hear(model, block, made, count=count).scale - 2 * scale) < 1e-3 * scale:
            found.append(key)
    if len(found) != 1:
        raise UnsupportedModelError(
            f"its blocks multiply what their experts add by {scale:.6g}, which "
            f"{'several keys' if found else 'no key'} of config.json states. {WAY_OUT}"
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

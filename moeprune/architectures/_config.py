"""What config.json says about the experts: their count under every spelling, top-k, groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moeprune.architectures._families import Family
from moeprune.errors import CheckpointError, UnsupportedModelError

Config = Mapping[str, Any]

COUNT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
TOP_K_KEYS = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_k",
    "top_k_experts",
    "moe_top_k",
    "experts_per_token",  # gpt-oss as published, beside num_experts_per_tok
)
GROUP_KEYS = ("n_group", "num_expert_group")
TOP_GROUP_KEYS = ("topk_group", "num_limited_groups")
LAYER_KEYS = ("num_hidden_layers", "num_layers", "n_layers")

# From the innermost outwards: the first level that states a count is the one a loader reads.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("thinker_config", "text_config"),
    ("text_config",),
    ("ffn_config",),
    (),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedExperts:
    """The level of config.json that states the expert count, and what it states.

    Attributes:
        path: keys that lead to the level; empty for the top.
        level: the level itself.
        count: routed experts of every layer.
        keys: the key of each spelling that is present, in the order of ``COUNT_KEYS``.
        elsewhere: path of each key of another level that states the same count.
        num_layers: layers of the main model, or None where not stated.
    """

    path: tuple[str, ...]
    level: Config
    count: int
    keys: tuple[str, ...]
    elsewhere: tuple[tuple[str, ...], ...]
    num_layers: int | None

    @property
    def count_keys(self) -> tuple[tuple[str, ...], ...]:
        """Path of each spelling from the top of config.json."""
        return (*((*self.path, key) for key in self.keys), *self.elsewhere)


def stated_experts(config: Config) -> StatedExperts | None:
    """Find the expert count in config.json; None where no level states one.

    Raises:
        CheckpointError: two spellings at the level disagree, or a count is no number.
        UnsupportedModelError: the count differs from layer to layer.
    """
    for path in LEVELS:
        level = descend(config, path)
        if level is None:
            continue
        keys = tuple(key for key in COUNT_KEYS if level.get(key) is not None)
        if not keys:
            continue
        count = agreed(level, keys, path)
        assert count is not None
        elsewhere = _stated_elsewhere(config, path, count)
        _refuse_per_layer(level, path)
        outer = descend(config, path[:-1]) or {}
        num_layers = next(
            (place[key] for place in (level, outer) for key in LAYER_KEYS if _is_count(place, key)),
            None,
        )
        return StatedExperts(
            path=path,
            level=level,
            count=count,
            keys=keys,
            elsewhere=elsewhere,
            num_layers=num_layers,
        )
    return None


def _stated_elsewhere(
    config: Config, own: tuple[str, ...], count: int
) -> tuple[tuple[str, ...], ...]:
    """Keys of other levels that state the same count: which level is read is up to the loader.

    Another number at another level is another model's, or a default nobody reads; it stays.
    """
    levels = ((path, descend(config, path)) for path in LEVELS if path != own)
    return tuple(
        (*path, key)
        for path, level in levels
        for key in COUNT_KEYS
        if level is not None and type(level.get(key)) is int and level[key] == count
    )


def groups_of(stated: StatedExperts, family: Family) -> tuple[int, int]:
    """Router groups, and how many of them a token may choose from; (1, 1) without a limit.

    Raises:
        CheckpointError: the groups do not divide the experts, or too many are chosen.
    """
    if not family.groups:
        return 1, 1
    level = stated.level
    for key, value in family.groups_when.items():
        if level.get(key, family.defaults.get(key)) != value:
            return 1, 1
    num_groups = _stated_or_default(stated, family, GROUP_KEYS)
    if num_groups <= 1:
        return 1, 1
    top_groups = _stated_or_default(stated, family, TOP_GROUP_KEYS)
    if stated.count % num_groups or not 1 <= top_groups <= num_groups:
        raise CheckpointError(
            f"config.json states {stated.count} experts in {num_groups} groups (n_group), of which "
            f"a token chooses {top_groups} (topk_group): no router can do that. Correct it."
        )
    return num_groups, top_groups


def extra_rows_of(stated: StatedExperts, family: Family) -> int:
    """Router rows after the last routed expert's."""
    if isinstance(family.extra_rows, int):
        return family.extra_rows
    level = {**family.defaults, **stated.level}
    return agreed(level, (family.extra_rows,), stated.path) or 0


def passes_of(stated: StatedExperts, family: Family, layers: Iterable[int]) -> tuple[int, ...]:
    """How often a forward pass runs each of ``layers``; () where it runs each once.

    Raises:
        CheckpointError: config.json states something that is no count.
    """
    if not family.loop:
        return ()
    level = {**family.defaults, **stated.level}
    start, end, passes = (agreed(level, (key,), stated.path) or 0 for key in family.loop)
    found = tuple(max(1, passes) if start <= layer < end else 1 for layer in layers)
    return found if max(found) > 1 else ()


def quant_method_of(config: Config, stated: StatedExperts) -> str | None:
    """``quantization_config.quant_method``, or None for an unquantised checkpoint."""
    for level in (config, stated.level):
        quantization = level.get("quantization_config")
        if isinstance(quantization, Mapping):
            method = quantization.get("quant_method")
            return str(method) if method else "unknown"
    return None


def descend(config: Config, path: Sequence[str]) -> Config | None:
    """The level of config.json that ``path`` leads to; None where there is none."""
    level: Any = config
    for key in path:
        level = level.get(key)
        if not isinstance(level, Mapping):
            return None
    found: Config = level
    return found


def _is_count(level: Config, key: str) -> bool:
    return type(level.get(key)) is int


def agreed(level: Config, keys: Sequence[str], path: Sequence[str]) -> int | None:
    """The one number that the present ones of ``keys`` state; None where none is present."""
    found: dict[str, int] = {}
    for key in keys:
        value = level.get(key)
        if value is None:
            continue
        where = ".".join((*path, key))
        if isinstance(value, list | Mapping):
            raise UnsupportedModelError(
                f"config.json states {where} per layer ({str(value)[:40]}); moeprune reads "
                "checkpoints whose layers share one number."
            )
        if type(value) is not int or value < 0:
            raise CheckpointError(f"config.json: {where} cannot be {value!r}. Correct it.")
        found[key] = value
    if len(set(found.values())) > 1:
        stated = " and ".join(f"{key} {value}" for key, value in found.items())
        raise CheckpointError(
            f"config.json contradicts itself: {stated} are spellings of one number. Correct it."
        )
    return next(iter(found.values()), None)


def _stated_or_default(stated: StatedExperts, family: Family, keys: Sequence[str]) -> int:
    # A null is a statement (no groups); only an absent key falls back to the family's default.
    place = stated.level if any(key in stated.level for key in keys) else family.defaults
    value = agreed(place, keys, stated.path)
    return 1 if value is None else value


def _refuse_per_layer(level: Config, path: Sequence[str]) -> None:
    overrides = level.get("per_layer_config")
    if not isinstance(overrides, Mapping):
        return
    for layer, values in overrides.items():
        for key in (*COUNT_KEYS, *TOP_K_KEYS):
            if isinstance(values, Mapping) and key in values:
                raise UnsupportedModelError(
                    f"config.json: {'.'.join((*path, 'per_layer_config'))} gives layer {layer} its "
                    f"own {key}; moeprune reads checkpoints whose layers share one number."
                )

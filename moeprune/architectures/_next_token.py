"""Next-token-prediction (MTP) layers: their tensors, and what config.json says once they are gone.

Checkpoints keep them after the main model's layers (``layers.<num_hidden_layers>`` …) or under a
name of their own (``mtp.*``). The main model's forward pass runs none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moeprune.architectures._config import LEVELS, stated_experts
from moeprune.core.layout import MoeLayout
from moeprune.core.names import is_language, is_number, names_next_token

COUNT_KEYS = (
    "num_nextn_predict_layers",
    "num_mtp_layers",
    "mtp_num_hidden_layers",
    "mtp_num_layers",
    "num_mtp_modules",
    "num_mtp_hidden_layers",
)
_SWITCH = "use_mtp"
_BLOCK = "mtp_config"  # some files keep the numbers in a block of their own
# Lists with an entry a layer that some files make longer by the next-token layers; a loader that
# reads no such layers refuses them at that length.
_PER_LAYER = (
    "layer_types",
    "mlp_layer_types",
    "partial_rotary_factors",
    "rope_theta",
    "swiglu_limits",
    "swiglu_limits_shared",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTokenLayers:
    """The layers that predict further tokens.

    Attributes:
        tensors: stored names, of everything in these layers; empty where there are none.
        without: path in config.json -> its value once the layers are gone; of the keys that count
            them, and of lists that are longer by them.
    """

    tensors: frozenset[str]
    without: Mapping[tuple[str, ...], Any]


def next_token_layers(
    config: Mapping[str, Any], tensors: Collection[str], layout: MoeLayout
) -> NextTokenLayers:
    """Find the next-token-prediction layers of a checkpoint.

    Args:
        config: config.json, parsed.
        tensors: names of all stored tensors.
        layout: of the same checkpoint.
    """
    stated = stated_experts(config)
    assert stated is not None, "the checkpoint has a layout"
    stacks = _stacks(layout)
    found = frozenset(
        name
        for name in tensors
        if is_language(name)
        and (names_next_token(name.split(".")) or _is_beyond(name, stacks, stated.num_layers))
    )
    assert found.issuperset(name for name, rule in layout.tensors.items() if rule.follows)
    without = dict(_counts(config))
    if found and not any(path[-1] in COUNT_KEYS for path in without):
        # Not stated, so a loader goes by its own default, which may be 1.
        without[*stated.path, COUNT_KEYS[0]] = 0
    if stated.num_layers is not None:
        without |= _trimmed(config, without, num_layers=stated.num_layers)
    return NextTokenLayers(tensors=found, without=without)


def _stacks(layout: MoeLayout) -> frozenset[str]:
    """What stands before the layer's number in the names of the main model's layers."""
    stacks = set()
    for name, rule in layout.tensors.items():
        if rule.follows or rule.role != "router":
            continue
        parts = name.split(".")
        number = str(layout.layer_ids[rule.row])
        places = [index for index, part in enumerate(parts) if part == number]
        stacks |= {".".join(parts[:index]) for index in places[-1:]}
    return frozenset(stacks)


def _is_beyond(name: str, stacks: Collection[str], num_layers: int | None) -> bool:
    parts = name.split(".")
    return num_layers is not None and any(
        is_number(part) and int(part) >= num_layers and ".".join(parts[:index]) in stacks
        for index, part in enumerate(parts)
    )


def _levels(config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    for start in LEVELS:
        for path in (start, (*start, _BLOCK)):
            level: Any = config
            for key in path:
                level = level.get(key) if isinstance(level, Mapping) else None
            if isinstance(level, Mapping):
                yield path, level


def _counts(config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, level in _levels(config):
        for key in COUNT_KEYS:
            if type(level.get(key)) is int:
                yield (*path, key), 0
        if level.get(_SWITCH) is True:
            yield (*path, _SWITCH), False


def _trimmed(
    config: Mapping[str, Any], without: Collection[tuple[str, ...]], *, num_layers: int
) -> dict[tuple[str, ...], Any]:
    """The lists that are longer by the layers that some level counts, cut to the main model's."""
    levels = dict(_levels(config))
    values = [levels[path[:-1]].get(path[-1]) for path in without if path[-1] in COUNT_KEYS]
    lengths = {num_layers + value for value in values if type(value) is int and value > 0}
    return {
        (*path, key): level[key][:num_layers]
        for path, level in levels.items()
        for key in _PER_LAYER
        if isinstance(level.get(key), list) and len(level[key]) in lengths
    }

"""The kind of attention of each layer, where config.json states it: to group layers by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# A list with one name a layer, as transformers and the older remote codes spell it.
_LISTS = ("layer_types", "layers_block_type")
_INTERVAL = "full_attention_interval"  # Qwen3-Next: every n-th layer has full attention


def attention_kinds(config: Mapping[str, Any], layer_ids: Sequence[int]) -> list[str] | None:
    """The kind of each MoE layer in the config's own words.

    Args:
        config: config.json.
        layer_ids: (L,) MoE layers.

    Returns:
        (L,) e.g. ``"full_attention"`` and ``"linear_attention"``; None where it is not stated.
    """
    for part in (config.get("text_config"), config):
        if not isinstance(part, Mapping):
            continue
        for key in _LISTS:
            kinds = part.get(key)
            if (
                isinstance(kinds, list)
                and len(kinds) > max(layer_ids)
                and all(isinstance(kind, str) for kind in kinds)
            ):
                return [kinds[layer] for layer in layer_ids]
        every = part.get(_INTERVAL)
        if type(every) is int and every > 0:
            return [
                "linear_attention" if (layer + 1) % every else "full_attention"
                for layer in layer_ids
            ]
    return None

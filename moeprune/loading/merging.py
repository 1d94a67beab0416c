"""Load single experts into modules that hold all experts of a layer in one tensor.

transformers does so for most families. For the others, ``config.json`` states under
``moeprune.merged`` what each tensor in memory is made of.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import conversion_mapping, core_model_loading
from transformers.quantizers import auto

from moeprune.loading.decoding import DECODING

_MERGING = threading.RLock()
# What config.json says so that transformers refuses the folder without this file.
NOT_ALONE = "of single experts: load with trust_remote_code=True"


class MergeExperts(core_model_loading.ConversionOps):
    """The weights of single experts as the one tensor that a module holds."""

    def __init__(self, transposed: bool = False, interleaved: bool = False) -> None:
        self.transposed, self.interleaved = transposed, interleaved

    @torch.no_grad()
    def convert(  # type: ignore[no-untyped-def]
        self, input_dict, source_patterns, target_patterns, *, model, full_layer_name, **kwargs
    ):
        """One tensor of the weights (out, in) of all experts, one list a map of an expert."""
        maps = []
        for pattern in source_patterns:  # what was dequantised before keeps some of the names
            if pattern in input_dict:
                weights = input_dict.pop(pattern)
                maps.append(weights if torch.is_tensor(weights) else torch.stack(weights))
        if self.interleaved:
            merged = torch.stack(maps, dim=2).flatten(1, 2)
        else:
            merged = torch.cat(maps, dim=1)
        if self.transposed:
            merged = merged.transpose(1, 2)
        shape = model.get_parameter(full_layer_name).shape
        if len(shape) == 2:  # experts that are blocks of rows
            merged = merged.reshape(-1, merged.shape[-1])
        return {target_patterns[0]: merged.contiguous()}

    @property
    def reverse_op(self) -> core_model_loading.ConversionOps:
        """Refused: what was dequantised while loading cannot be written as it was read."""
        raise ValueError("experts that were dequantised while loading cannot be saved again.")


@contextlib.contextmanager
def merging_experts(model_class: Any, config: Any) -> Iterator[None]:
    """Merge the experts of a model that is loaded inside, if its config states how.

    Other models of the family, in the same process, are none of this file's business: nothing
    stays registered.
    """
    stated = (getattr(config, "moeprune", None) or {}).get("merged")
    if stated is None:
        yield
        return
    # What keeps transformers from loading the folder without this file, with random experts.
    config._experts_implementation = None
    settings = getattr(config, "quantization_config", None)
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if isinstance(settings, dict) and method in DECODING:
        settings["dequantize"] = True
    converters = [
        core_model_loading.WeightConverter(
            list(tensor["of"]),
            target,
            [MergeExperts(tensor["transposed"], tensor["interleaved"])],
        )
        for target, tensor in stated.items()
    ]
    name = model_class.__name__
    if conversion_mapping.get_checkpoint_conversion_mapping(name) is None:
        name = config.model_type
    with _MERGING:
        before = conversion_mapping.get_checkpoint_conversion_mapping(name)
        by_user = name in conversion_mapping.USER_REGISTERED_MAPPINGS
        native = auto.AUTO_QUANTIZER_MAPPING.get(method)
        conversion_mapping.register_checkpoint_conversion_mapping(
            name, [*(before or []), *converters], overwrite=True
        )
        auto.AUTO_QUANTIZER_MAPPING |= {method: DECODING[method]} if method in DECODING else {}
        try:
            yield
        finally:
            conversion_mapping.register_checkpoint_conversion_mapping(name, before, overwrite=True)
            if not by_user:
                conversion_mapping.USER_REGISTERED_MAPPINGS.discard(name)
            if method in DECODING:
                auto.AUTO_QUANTIZER_MAPPING[method] = native


def close_folder(folder: str | Path) -> None:
    """Keep others from loading single experts that a model was saved as, which this file merges.

    Args:
        folder: with the config.json that transformers has just written.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        return
    config = json.loads(path.read_text("utf-8"))
    if "quantization_config" not in config or "merged" not in (config.get("moeprune") or {}):
        return  # plain numbers are saved as the family has them
    last = sorted(config["auto_map"].items())[-1][1]
    config |= {"experts_implementation": NOT_ALONE, "architectures": [last.rpartition(".")[2]]}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")

"""Whether the settings of a quantised export say of each module what its tensors are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from moeprune.quant._grid import NAMES
from moeprune.quant.compressed_tensors import group_of

_METHODS = {
    "nf4": "bitsandbytes",
    "int8": "compressed-tensors",
    "int4": "compressed-tensors",
    "fp8": "fp8",
}
_BITS = {"int8": 8, "int4": 4}
_SKIPS = {
    "bitsandbytes": "llm_int8_skip_modules",
    "compressed-tensors": "ignore",
    "fp8": "modules_to_not_convert",
}
# What else decides how loaders read weights, or whether they round activations. null is absent.
_DUE: dict[str, dict[str, Any]] = {
    "bitsandbytes": {
        "load_in_4bit": True,
        "load_in_8bit": False,
        "_load_in_4bit": True,
        "_load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_threshold": 6.0,
    },
    "compressed-tensors": {
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "sparsity_config": None,
    },
    "fp8": {"activation_scheme": "dynamic"},
}
_GROUP = {"format": "pack-quantized", "input_activations": None, "output_activations": None}
_INTEGERS = {"type": "int", "symmetric": True, "strategy": "group", "dynamic": False}
_INTEGERS |= {"actorder": None, "block_structure": None}


def stated_problems(
    settings: Any,
    quantised: Mapping[str, tuple[str, int]],
    plain: Collection[str],
    *,
    double_quant: bool,
) -> Iterator[str]:
    """What is wrong with ``quantization_config``, one line each.

    Args:
        settings: as config.json has it.
        quantised: module -> its scheme and group size.
        plain: all other modules that hold a matrix.
        double_quant: whether the scales of nf4 are quantised.
    """
    where = "config.json quantization_config"
    methods = {_METHODS[scheme] for scheme, _ in quantised.values()}
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    if methods != {method}:
        yield f"{where}: quant_method is {method!r}, the weights are {', '.join(sorted(methods))}"
        return
    due = dict(_DUE[str(method)])
    if method == "bitsandbytes":
        due["bnb_4bit_use_double_quant"] = double_quant
        if settings.get("bnb_4bit_compute_dtype") not in NAMES:
            due["bnb_4bit_compute_dtype"] = "bfloat16"
    for key, value in due.items():
        if not _is(settings.get(key), value):
            yield f"{where}: {key} is {settings.get(key)!r}, not {value!r}"
    seen: set[tuple[str, int, str]] = set()
    for module, (scheme, size) in quantised.items():
        found = _wrong_group(settings, module, scheme, size)
        if found and (scheme, size, found) not in seen:  # once for all of one kind
            seen.add((scheme, size, found))
            yield f"{where}: {module} is {scheme} in groups of {size}, stated is {found}"
    skips = settings.get(_SKIPS[str(method)])
    entries = [entry for entry in skips or () if isinstance(entry, str)]
    if skips is not None and (not isinstance(skips, list) or len(entries) < len(skips)):
        yield f"{where}: {_SKIPS[str(method)]} is no list of names"
    skipped = next((name for name in quantised if _is_skipped(name, entries)), None)
    if skipped is not None:
        yield f"{where}: {skipped} is quantised, and loaders are told that it is not"
    read = next((name for name in plain if not _is_skipped(name, entries)), None)
    if read is not None:
        yield f"{where}: {read} is not quantised, and loaders are told that it is"


def _wrong_group(settings: Mapping[str, Any], module: str, scheme: str, size: int) -> str:
    """What the settings make of a module where that is not its scheme; else ""."""
    if scheme == "fp8":
        block = settings.get("weight_block_size")
        return "" if block == [size, size] else f"weight_block_size {block!r}"
    if scheme == "nf4":
        return ""  # each weight states its own
    groups = settings.get("config_groups")
    group = group_of(module, groups) if isinstance(groups, dict) else None
    group = group if isinstance(group, dict) else {}
    weights = group.get("weights")
    stated = weights if isinstance(weights, dict) else {}
    due = {"num_bits": _BITS[scheme], "group_size": size, **_INTEGERS}
    wrong = {key: stated.get(key) for key, value in due.items() if not _is(stated.get(key), value)}
    wrong |= {key: group.get(key) for key, value in _GROUP.items() if group.get(key) != value}
    targets = group.get("targets") or ()
    if not any(target == "Linear" or str(target).startswith("re:") for target in targets):
        wrong["targets"] = targets
    return ", ".join(f"{key} {value!r}" for key, value in wrong.items())


def _is(have: Any, due: Any) -> bool:
    """Whether a setting is the one that is due; 1 is not True."""
    return type(have) is type(due) and bool(have == due)


def _is_skipped(name: str, entries: Collection[str]) -> bool:
    """Whether a loader takes one of ``entries`` for the module: by its name, start, end, or part.

    Loaders differ in what a name without a pattern covers; every one of these is read by some.
    """
    for entry in entries:
        if entry.startswith("re:"):
            if re.match(entry[3:], name):
                return True
        elif (
            name == entry
            or name.endswith(entry)
            or name.startswith(f"{entry}.")
            or entry in name.split(".")
        ):
            return True
    return False

"""Which stored format a checkpoint has, and whether it is whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import moeprune.quant as quant
from moeprune import plugins
from moeprune.core.layout import TensorInfo
from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.quant._settings import settings_of


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """The stored format of a quantised checkpoint.

    Attributes:
        method: ``quant_method`` as config.json states it; "unknown" where it states none.
        settings: the quantisation settings.
        plugin: the format's module in this folder, or None for one that moeprune does not know.
    """

    method: str
    settings: Mapping[str, Any]
    plugin: ModuleType | None


def stored_format(config: Mapping[str, Any]) -> StoredFormat | None:
    """The stored format that config.json states, or None for an unquantised checkpoint."""
    settings = settings_of(config)
    if settings is None:
        return None
    stated = settings.get("quant_method")
    if stated is None and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        stated = "bitsandbytes"
    method = str(stated) if stated else "unknown"
    for name in plugins.names(quant):
        plugin = plugins.load(quant, name)
        if method.lower() in plugin.METHODS:
            return StoredFormat(method, settings, plugin)
    return StoredFormat(method, settings, None)


def check_companions(
    stored: StoredFormat | None, tensors: Mapping[str, TensorInfo], experts: Iterable[str]
) -> None:
    """Check that every quantised expert has what its bytes need to mean anything.

    Args:
        stored: the format.
        tensors: all tensors.
        experts: names of those that hold experts.

    Raises:
        CheckpointError: a companion is missing; the message names it.
    """
    if stored is None or stored.plugin is None:
        return
    for name in experts:
        for group in stored.plugin.requires(name, tensors[name]):
            if not any(companion in tensors for companion in group):
                raise CheckpointError(
                    f"tensor {name!r} ({tensors[name].dtype}, {stored.method}) has no {group[0]!r} "
                    "beside it, without which its numbers mean nothing. Download the checkpoint "
                    "again."
                )


def not_loadable(
    stored: StoredFormat | None, tensors: Mapping[str, TensorInfo], experts: Collection[str]
) -> str | None:
    """Why transformers does not turn the stored experts back into the right numbers, or None.

    Args:
        stored: the format.
        tensors: all tensors.
        experts: names of those that hold experts.
    """
    if stored is None:
        packed = next((name for name in experts if tensors[name].dtype in _PACKED), None)
        if packed is None:
            return None
        return f"config.json has no quantization_config, but {packed} is {tensors[packed].dtype}"
    if stored.plugin is None:
        return f"quant_method {stored.method!r} is not one that moeprune knows"
    reason: str | None = stored.plugin.not_loaded(stored.settings, tensors, experts)
    return reason


def check_loadable(
    stored: StoredFormat | None, tensors: Mapping[str, TensorInfo], experts: Collection[str]
) -> None:
    """Check that transformers turns the stored experts back into the right numbers.

    Args:
        stored: the format.
        tensors: all tensors.
        experts: names of those that hold experts.

    Raises:
        UnsupportedModelError: it does not; the message says why.
    """
    reason = not_loadable(stored, tensors, experts)
    if reason is not None:
        raise UnsupportedModelError(
            f"the model cannot be run here: {reason}. Run the unquantised checkpoint; export and "
            "verify without --forward work on this one."
        )


_PACKED = frozenset({"F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "I8", "I16", "I32", "F4"})

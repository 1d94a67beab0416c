"""Where a factor of a weight goes: into the numbers themselves, or into the scale beside them."""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.core.layout import TensorInfo
from moeprune.errors import UnsupportedModelError
from moeprune.quant._format import StoredFormat

_PLAIN = ("BF16", "F16", "F32", "F64")
_WEIGHTS = ("weight", "", "qweight", "weight_packed", "blocks", "weight_blocks")
_BIASES = ("bias",)
# What divides: NVFP4 of compressed-tensors is codes x scale / global scale.
_DIVIDES = frozenset({"weight_global_scale"})


def multipliers(
    stored: StoredFormat | None, parts: Mapping[str, str], tensors: Mapping[str, TensorInfo]
) -> dict[str, int]:
    """What to multiply, so that the output of one linear map is multiplied.

    Args:
        stored: the format, None for an unquantised checkpoint.
        parts: what follows the map's name -> stored tensor.
        tensors: all tensors.

    Returns:
        stored tensor -> 1: its values times the factor, or −1: divided by it.

    Raises:
        UnsupportedModelError: the weight has no scale of its own, or one that cannot hold a factor;
            the message names the tensor.
    """
    found: dict[str, int] = {}
    for part in _BIASES:
        if part in parts:
            _check_plain(parts[part], tensors)
            found[parts[part]] = 1
    weight = next((parts[part] for part in _WEIGHTS if part in parts), None)
    if weight is None:
        raise _no_place(f"{_any(parts)!r}: there is no weight beside it")
    if tensors[weight].dtype in _PLAIN:
        return {weight: 1, **found}
    if stored is None or stored.plugin is None:
        how = f"quant_method {stored.method!r} is" if stored else "its format is"
        raise _no_place(f"{weight!r} is {tensors[weight].dtype}, and {how} not known")
    if str(stored.settings.get("scale_fmt")).lower() == "ue8m0":
        raise _no_place(f"the scale of {weight!r} is a power of two (scale_fmt ue8m0)")
    if any("nested" in part for part in parts):
        raise _no_place(f"the scale of {weight!r} is quantised itself (double quantisation)")
    scale = next((part for part in stored.plugin.SCALES if part in parts), None)
    if scale is None:
        raise _no_place(f"{weight!r} is {tensors[weight].dtype} and has no scale of its own")
    _check_plain(parts[scale], tensors)
    return {parts[scale]: -1 if scale in _DIVIDES else 1, **found}


def _check_plain(name: str, tensors: Mapping[str, TensorInfo]) -> None:
    if tensors[name].dtype not in _PLAIN:
        raise _no_place(f"{name!r} is {tensors[name].dtype}, a type too coarse for it")


def _any(parts: Mapping[str, str]) -> str:
    return next(iter(parts.values()))


def _no_place(reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"a gain has no place to go: {reason}. Export with --k1 and --k2 without --fold-gain, or "
        "fold it into the unquantised checkpoint."
    )

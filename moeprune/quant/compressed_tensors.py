"""compressed-tensors (LLM Compressor, Kimi K2): ``compressed-tensors``.

=========================  =====================================================================
``pack-quantized``         ``weight_packed`` int32, ``weight_scale``, ``weight_shape``; asymmetric:
                           ``weight_zero_point``; activation order: ``weight_g_idx``
``float-quantized``        ``weight`` E4M3 and ``weight_scale``, one a row, tensor or block
``int-quantized``          ``weight`` int8 and ``weight_scale``
``nvfp4-pack-quantized``   ``weight_packed`` uint8, ``weight_scale`` E4M3, ``weight_global_scale``
``mxfp4-pack-quantized``   ``weight_packed`` uint8, ``weight_scale`` uint8 (exponents)
=========================  =====================================================================

Names in ``ignore`` and ``targets`` are module names, class names or, after ``re:``, patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from moeprune.core.layout import TensorInfo
from moeprune.quant._names import matcher

METHODS = ("compressed-tensors",)
PLACES = (
    ("ignore",),
    ("config_groups", "*", "targets"),
    ("sparsity_config", "ignore"),
    ("sparsity_config", "targets"),
)
SCALES = ("weight_global_scale", "weight_scale")

# A target that is no module's: with it, a file says that its layers are not all of one scheme.
NO_LAYER = "experts[.]of[.]no[.]layer"

# What transformers' conversion of experts does not read, though the numbers depend on it.
_UNREAD = {
    "weight_zero_point": "ignores the zero points of asymmetric experts",
    "weight_g_idx": "ignores the activation order of experts",
    "weight_global_scale": "ignores the global scales of NVFP4 experts",
}


def requires(name: str, info: TensorInfo) -> Iterable[tuple[str, ...]]:
    """A packed, FP8 or INT8 weight needs its scale."""
    if name.endswith(".weight_packed"):
        return ((name.removesuffix("packed") + "scale",),)
    if name.endswith(".weight") and info.dtype in ("F8_E4M3", "I8"):
        return ((f"{name}_scale",),)
    return ()


def not_loaded(
    settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo], experts: Collection[str]
) -> str | None:
    """Companions that are ignored, formats without a reader, and several schemes.

    Integers of several layers' own schemes, and plain experts beside them, moeprune's reader loads.
    """
    for name in experts:
        last = name.rpartition(".")[2]
        if last in _UNREAD:
            return f"transformers {_UNREAD[last]} ({name})"
        if last == "weight" and tensors[name].dtype == "I8":
            return f"transformers does not load INT8 experts that are not packed ({name})"
    packed = {tensors[name].dtype for name in experts if name.endswith(".weight_packed")}
    plain = next((name for name in experts if name.endswith(".weight")), None)
    if packed - {"I32"} and plain is not None:
        return f"transformers does not load packed experts where some are not packed ({plain})"
    if (packed == {"I32"} and plain is not None) or _is_layered(settings):
        return None
    return _several_schemes(settings, tensors, experts)


def bits_of(module: str, settings: Mapping[str, Any]) -> int | None:
    """Bits of one packed weight of ``module``, or None where the settings do not say."""
    groups = settings.get("config_groups")
    group = group_of(module, groups) if isinstance(groups, dict) else None
    if group is None and isinstance(groups, dict) and groups:
        group = _read_by(groups, routed=".experts." in module)
    weights = group.get("weights") if isinstance(group, dict) else None
    bits = weights.get("num_bits") if isinstance(weights, dict) else None
    return bits if type(bits) is int and bits > 0 else None


def _is_layered(settings: Mapping[str, Any]) -> bool:
    """Whether the file says that its layers differ, as exports of moeprune do."""
    groups = settings.get("config_groups")
    return isinstance(groups, dict) and any(
        NO_LAYER in target for group in groups.values() for target in _targets(group)
    )


def _several_schemes(
    settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo], experts: Collection[str]
) -> str | None:
    """Transformers unpacks all experts by one group of the settings, all the rest by another."""
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or len(groups) < 2:
        return None
    for name in tensors:
        module, _, last = name.rpartition(".")
        if last not in ("weight_packed", "weight_scale"):
            continue
        used = group_of(module, groups)
        read = _read_by(groups, routed=name in experts)
        if used is not None and _scheme(used, settings) != _scheme(read, settings):
            return f"transformers would unpack {module} by the settings of other modules"
    return None


def _targets(group: Any) -> list[str]:
    targets = group.get("targets") if isinstance(group, dict) else None
    if not isinstance(targets, list):
        return []
    return [target for target in targets if isinstance(target, str)]


def group_of(module: str, groups: Mapping[str, Any]) -> Any:
    """The group that the module belongs to: by its name, else by a pattern, else by its class."""

    def by_pattern(target: str) -> bool:
        return target.startswith("re:") and matcher("re:", target[3:])(module)

    def by_class(target: str) -> bool:
        return target.isidentifier() and target[:1].isupper()

    tests: tuple[Callable[[str], bool], ...] = (module.__eq__, by_pattern, by_class)
    return next(
        (
            group
            for test in tests
            for group in groups.values()
            if any(test(target) for target in _targets(group))
        ),
        None,
    )


def _read_by(groups: Mapping[str, Any], *, routed: bool) -> Any:
    """The group by which transformers reads routed experts, or other modules."""
    every = list(groups.values())

    def names_experts(group: Any) -> bool:
        return any(target.startswith("re:") and "experts" in target for target in _targets(group))

    def by_class(group: Any) -> bool:
        return any(not target.startswith("re:") for target in _targets(group))

    def first(wanted: Any) -> Iterator[Any]:
        return (group for group in every if wanted(group))

    if routed:
        return next(first(names_experts), next(first(by_class), every[0]))
    return next(first(lambda group: not names_experts(group)), every[0])


def _scheme(group: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    if not isinstance(group, dict):
        return None, None
    return group.get("format") or settings.get("format"), group.get("weights")

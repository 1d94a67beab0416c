"""What takes a factor of a weight, of stored formats by the names and types of their tensors."""

from __future__ import annotations

from typing import Any

import pytest

import moeprune.quant as quant
from moeprune import plugins
from moeprune.core.layout import TensorInfo
from moeprune.errors import UnsupportedModelError
from moeprune.quant import multipliers, stored_format

MAP = "model.layers.0.mlp.experts.3.down_proj"


def found(parts: dict[str, str], **settings: Any) -> dict[str, int]:
    """Part -> power, of a map whose parts have these types."""
    names = {part: f"{MAP}.{part}" if part else MAP for part in parts}
    tensors = {names[part]: TensorInfo(dtype, (8, 8), 64) for part, dtype in parts.items()}
    config = {"quantization_config": settings} if settings else {}
    result = multipliers(stored_format(config), names, tensors)
    back = {name: part for part, name in names.items()}
    return {back[name]: power for name, power in result.items()}


@pytest.mark.parametrize(
    ("method", "parts", "wanted"),
    [
        (None, {"weight": "BF16"}, {"weight": 1}),
        (None, {"weight": "F32", "bias": "F32"}, {"weight": 1, "bias": 1}),
        (None, {"": "F16", "bias": "F16"}, {"": 1, "bias": 1}),
        ("fp8", {"weight": "BF16"}, {"weight": 1}),  # left out by the quantiser
        ("fp8", {"weight": "F8_E4M3", "weight_scale_inv": "F32"}, {"weight_scale_inv": 1}),
        ("fp8", {"": "F8_E4M3", "scale_inv": "BF16", "bias": "BF16"}, {"scale_inv": 1, "bias": 1}),
        ("fp8", {"weight": "I8", "scale": "F32"}, {"scale": 1}),
        (
            "bitsandbytes",
            {"weight": "U8", "weight.absmax": "F32", "weight.quant_map": "F32"},
            {"weight.absmax": 1},
        ),
        ("bitsandbytes", {"weight": "I8", "SCB": "F32"}, {"SCB": 1}),
        (
            "compressed-tensors",
            {"weight_packed": "U8", "weight_scale": "F8_E4M3", "weight_global_scale": "F32"},
            {"weight_global_scale": -1},
        ),
        (
            "modelopt",
            {"weight": "U8", "weight_scale": "F8_E4M3", "weight_scale_2": "F32"},
            {"weight_scale_2": 1},
        ),
        ("gptq", {"qweight": "I32", "qzeros": "I32", "scales": "F16"}, {"scales": 1}),
        ("fbgemm_fp8", {"": "F8_E4M3", "scale": "F32"}, {"scale": 1}),
    ],
)
def test_what_takes_it(method: str | None, parts: dict[str, str], wanted: dict[str, int]) -> None:
    settings = {"quant_method": method} if method else {}
    assert found(parts, **settings) == wanted


@pytest.mark.parametrize(
    ("settings", "parts", "words"),
    [
        ({}, {"weight": "F8_E4M3"}, "its format is not known"),
        ({"quant_method": "tomorrow"}, {"weight": "U8", "scale": "F32"}, "'tomorrow' is not known"),
        ({"quant_method": "fp8"}, {"weight": "F8_E4M3"}, "no scale of its own"),
        ({"quant_method": "fp8"}, {"weight": "I8", "scale": "F8_E8M0"}, "is F8_E8M0, a type too"),
        ({"quant_method": "mxfp4"}, {"blocks": "U8", "scales": "U8"}, "is U8, a type too coarse"),
        (
            {"quant_method": "fp8", "scale_fmt": "UE8M0"},
            {"weight": "F8_E4M3", "weight_scale_inv": "F32"},
            "power of two",
        ),
        (
            {"quant_method": "bitsandbytes"},
            {"weight": "U8", "weight.absmax": "U8", "weight.nested_absmax": "F32"},
            "double quantisation",
        ),
        ({"quant_method": "fp8"}, {"weight_scale_inv": "F32"}, "no weight beside it"),
        ({}, {"weight": "BF16", "bias": "I8"}, "is I8, a type too coarse"),
    ],
)
def test_what_cannot(settings: dict[str, Any], parts: dict[str, str], words: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        found(parts, **settings)
    assert words in str(caught.value) and MAP in str(caught.value)
    assert "\n" not in str(caught.value) and "without --fold-gain" in str(caught.value)


def test_every_format_says_what_takes_it() -> None:
    for name in plugins.names(quant):
        scales = plugins.load(quant, name).SCALES
        assert scales and all(isinstance(scale, str) for scale in scales)

"""The plug-ins of the folder, and settings that no quantiser wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import moeprune.quant as quant
from moeprune import plugins
from moeprune.checkpoint.names import edit_json_names
from moeprune.core.layout import TensorInfo
from moeprune.errors import MoePruneError
from moeprune.quant import (
    ExpertNames,
    Renaming,
    check_companions,
    check_loadable,
    check_renumberable,
    places_in_config,
    settings_differences,
    stored_format,
    values_of,
)
from moeprune.quant._settings import expected

FORMATS = [plugins.load(quant, name) for name in plugins.names(quant)]
METHODS = [method for plugin in FORMATS for method in plugin.METHODS]
KEYS = sorted({key for plugin in FORMATS for place in plugin.PLACES for key in place} - {"*"})
TENSORS = {
    f"model.layers.0.mlp.experts.{e}.{part}.{name}": TensorInfo(dtype, (4, 4), 16)
    for e in range(4)
    for part in ("up_proj", "down_proj")
    for name, dtype in (("weight", "F8_E4M3"), ("weight_scale_inv", "F32"), ("weight_scale", "F32"))
}
NAMES = st.sampled_from(
    [
        "lm_head",
        "Linear",
        "model.layers.0.mlp.experts.1.up_proj",
        "re:.*experts[.][12][.].*",
        "re:(",
    ]
) | st.text(max_size=4)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | NAMES, inner, max_size=3)
    ),
    max_leaves=12,
)


def test_no_method_means_two_formats() -> None:
    assert len(METHODS) == len(set(METHODS))
    for plugin in FORMATS:
        assert plugin.__doc__ and plugin.METHODS and plugin.PLACES


@pytest.mark.parametrize("method", METHODS)
def test_found_by_method_in_any_place(method: str) -> None:
    body = {"quant_method": method}
    for config in ({"quantization_config": body}, {"text_config": {"quantization_config": body}}):
        stored = stored_format(config)
        assert stored is not None and stored.plugin is not None
        assert method in stored.plugin.METHODS
    assert stored_format({"text_config": {}}) is None


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([*METHODS, "tomorrow", 3, None]), st.dictionaries(st.sampled_from(KEYS), VALUES)
)
def test_any_settings_give_an_answer_or_one_line(method: Any, body: dict[str, Any]) -> None:
    config = {"quantization_config": {"quant_method": method, **body}, "n": [1.5, "é"]}
    names = ExpertNames.of(TENSORS)
    change = Renaming(names, dict.fromkeys(names.parts, (0, 2, 3)))
    text = json.dumps(config, indent=1)
    try:
        stored = stored_format(config)
        assert stored is not None
        check_companions(stored, TENSORS, TENSORS)
        places = places_in_config(stored.plugin)
        check_renumberable(config, places=places)
        edited = json.loads(edit_json_names(text, places, change))
        # The text and the parsed value are changed by different code, to the same end.
        assert not list(
            settings_differences(config, edited, places=places, change=change, where="config.json")
        )
        assert edited["n"] == config["n"]
        check_loadable(stored, TENSORS, set(TENSORS))
        counted = values_of(stored, TENSORS)
        assert set(counted) == set(TENSORS)
        assert counted["model.layers.0.mlp.experts.3.up_proj.weight"] == 16
        assert counted["model.layers.0.mlp.experts.3.up_proj.weight_scale_inv"] == 0
    except MoePruneError as problem:
        assert "\n" not in str(problem)


def test_expected_leaves_other_things_alone() -> None:
    def change(name: str) -> tuple[str, ...]:
        return (name + "!",)

    assert expected(["a", 1, ["b", None], {"c": "d"}], change) == [
        "a!",
        1,
        ["b!", None],
        {"c": "d"},
    ]
    assert expected({"a": ["b"]}, change) == {"a!": ["b"]}
    assert expected(None, change) is None


SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
SUFFIXES = [
    "weight",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_shape",
    "scale",
    "SCB",
    "bias",
    "weight_scale_inv",
    "weight_zero_point",
    "weight.absmax",
    "gate_up_proj",
    "gate_up_proj_blocks",
    "gate_up_proj_scales",
    "w13_weight",
]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([*METHODS, "tomorrow"]),
    st.dictionaries(st.sampled_from(KEYS), VALUES),
    st.dictionaries(
        st.sampled_from([f"model.layers.0.mlp.experts.0.{suffix}" for suffix in SUFFIXES]),
        st.builds(
            lambda dtype, shape: TensorInfo(dtype, shape, 4),
            st.sampled_from(["I32", "U8", "I8", "F8_E4M3", "F4", "F16", "F32"]),
            SHAPES,
        ),
    ),
)
def test_any_tensors_can_be_counted(
    method: str, body: dict[str, Any], tensors: dict[str, TensorInfo]
) -> None:
    stored = stored_format({"quantization_config": {"quant_method": method, **body}})
    try:
        counted = values_of(stored, tensors)
    except MoePruneError as problem:
        assert "\n" not in str(problem)
        return
    assert counted.keys() <= tensors.keys() and all(count >= 0 for count in counted.values())
    bias = "model.layers.0.mlp.experts.0.bias"
    assert bias not in counted or tensors[bias].dtype.startswith(("F4", "F8"))

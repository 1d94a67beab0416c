"""Configs and names that no writer makes on purpose: refused in one line, at once."""

import time

import pytest
from tables import info, moe, qwen

from moeprune.architectures import layout_of
from moeprune.errors import CheckpointError, MoePruneError, UnsupportedModelError


@pytest.mark.parametrize("count", [10**9, 10**12, 10**30])
def test_a_count_of_billions_fills_no_memory(count: int) -> None:
    start = time.monotonic()
    with pytest.raises(CheckpointError, match="lacks expert"):
        layout_of(qwen(num_experts=count), moe("model.layers.0"))
    assert time.monotonic() - start < 5


def test_a_count_at_two_levels_is_changed_at_both() -> None:
    """Which level is read is up to the loader: a top-level family reads the top."""
    table, config = moe("model.layers.0"), qwen()
    nested = {**config, "text_config": dict(config)}
    assert layout_of(nested, table).count_keys == (("text_config", "num_experts"), ("num_experts",))
    deeper = {"thinker_config": {"text_config": dict(config)}, "num_experts": 12}
    assert layout_of(deeper, table).count_keys == (
        ("thinker_config", "text_config", "num_experts"),
        ("num_experts",),
    )


@pytest.mark.parametrize("other", [None, 99, 0, True, [12], "12"])
def test_another_value_at_another_level_stays(other: object) -> None:
    config = {"text_config": qwen(), "num_experts": other, "model_type": "qwen3_vl_moe"}
    layout = layout_of(config, moe("model.layers.0"))
    assert layout.count_keys == (("text_config", "num_experts"),)


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    "name",
    [
        f"model.layers.0.mlp.experts.{DIGITS}.up_proj.weight",
        f"model.layers.0.mlp.experts.{'9' * 30}.up_proj.weight",
        "model.layers.0.mlp.experts.00.up_proj.weight",
        "model.layers.0.mlp.experts.٣.up_proj.weight",
        "model.layers.0.mlp.experts",
        "model.layers.0.mlp.experts_extra",
    ],
    ids=["5000-digits", "30-digits", "leading-zero", "other-digits", "the-module", "beside"],
)
def test_a_name_that_is_nearly_an_experts_is_refused(name: str) -> None:
    table = moe("model.layers.0")
    experts = qwen()["num_experts"]
    table[name] = info((experts, 8))
    with pytest.raises(MoePruneError) as caught:
        layout_of(qwen(), table)
    assert "\n" not in str(caught.value)


def test_a_layer_number_of_5000_digits_is_none() -> None:
    with pytest.raises(UnsupportedModelError, match="no numbered layer"):
        layout_of(qwen(), moe(f"model.layers.{DIGITS}"))
    other = moe("model.layers.0") | {f"model.layers.{DIGITS}.norm.weight": info((8,))}
    assert layout_of(qwen(), other).layer_ids == (0,)

"""Stacks of all experts, how they fall apart: every family, and shapes that say which way."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import info
from test_layout_facts import PLAIN, config_of, tables_of

from moeprune.architectures import layout_of
from moeprune.core.split import Split

GATED, DOWN = ("gate_proj", "up_proj"), ("down_proj",)
# What follows the layer -> module, maps, transposed, interleaved; read off transformers' modules.
FUSED = {
    "experts.gate_up_proj": ("experts", GATED, False, False),
    "experts.down_proj": ("experts", DOWN, False, False),
}
TURNED = {name: (module, maps, True, last) for name, (module, maps, _, last) in FUSED.items()}
W13 = {
    "mlp.experts.w13_weight": ("mlp.experts", GATED, False, True),
    "mlp.experts.w2_weight": ("mlp.experts", DOWN, False, False),
}
LINEAR = {
    "input_linear.weight": ("experts", GATED, False, False),
    "output_linear.weight": ("experts", DOWN, False, False),
}


def under(block: str, ways: dict[str, Any]) -> dict[str, Any]:
    return {f"{block}.{name}": (f"{block}.{way[0]}", *way[1:]) for name, way in ways.items()}


MLP = under("mlp", FUSED)
WANT: dict[str, dict[str, Any]] = {
    "aria": {
        "mlp.experts.fc1.weight": ("mlp.experts", GATED, True, False),
        "mlp.experts.fc2.weight": ("mlp.experts", DOWN, True, False),
    },
    "dbrx": {
        "ffn.experts.mlp.w1": ("ffn.experts", ("gate_proj",), False, False),
        "ffn.experts.mlp.v1": ("ffn.experts", ("up_proj",), False, False),
        "ffn.experts.mlp.w2": ("ffn.experts", DOWN, True, False),
    },
    "gpt_oss": {
        "mlp.experts.gate_up_proj": ("mlp.experts", GATED, True, True),
        "mlp.experts.down_proj": ("mlp.experts", DOWN, True, False),
    },
    **dict.fromkeys(("diffusion_gemma", "gemma4", "gemma4_text"), FUSED),
    **dict.fromkeys(
        ("granitemoe", "granitemoeshared", "granitemoehybrid"), under("block_sparse_moe", LINEAR)
    ),
    "granitemoe_swa": under("block_sparse_moe", FUSED),
    **dict.fromkeys(("hy_v4", "hy_v4_vl", "inkling_text", "lara_mini", "mistral3_mistral4"), MLP),
    **dict.fromkeys(("mistral4", "muse_spark", "qwen3_vl_moe", "zaya"), MLP),
    **dict.fromkeys(("inkling2", "inkling2_loop", "inkling2_loop_text", "inkling2_text"), W13),
    "inkling_mm_model": W13,
    **dict.fromkeys(("llama4", "llama4_text"), under("feed_forward", TURNED)),
    "step3p7": {
        "moe.gate_proj.weight": ("moe.experts", ("gate_proj",), False, False),
        "moe.up_proj.weight": ("moe.experts", ("up_proj",), False, False),
        "moe.down_proj.weight": ("moe.experts", DOWN, False, False),
    },
}


def way(split: Split, layer: str) -> tuple[Any, ...]:
    assert split.module.startswith(f"{layer}.")
    module = split.module.removeprefix(f"{layer}.")
    return module, split.maps, split.transposed, split.interleaved


@pytest.mark.parametrize("fact", PLAIN, ids=lambda fact: str(fact["entry"]))
def test_every_family(fact: dict[str, Any]) -> None:
    layer = next(iter(fact["experts"])).partition("{L}")[0] + "1"
    layout = layout_of(config_of(fact), {n: head for n, (head, _) in tables_of(fact, 1).items()})
    want = WANT.get(fact["entry"], {})
    found = {name.removeprefix(f"{layer}."): split for name, split in layout.splits.items()}
    assert {name: way(split, layer) for name, split in found.items()} == want
    stacked = [name for name, at in layout.tensors.items() if at.role == "expert" and at.axis == 0]
    assert list(layout.splits) == [name for name in stacked if not name.endswith("_bias")]


def test_attention_experts_of_jetmoe_have_no_gate() -> None:
    config = {"model_type": "jetmoe", "num_hidden_layers": 1, "num_local_experts": 4}
    block, attention = "model.layers.0.mlp", "model.layers.0.self_attention.experts"
    shapes = {
        f"{block}.input_linear.weight": (4, 40, 32),
        f"{block}.output_linear.weight": (4, 32, 20),
        f"{block}.router.layer.weight": (4, 32),
        f"{attention}.input_linear.weight": (4, 16, 32),
        f"{attention}.output_linear.weight": (4, 32, 16),
        f"{attention}.router.layer.weight": (4, 32),
    }
    splits = layout_of(config, {name: info(shape) for name, shape in shapes.items()}).splits
    assert {name: (split.module, split.maps) for name, split in splits.items()} == {
        f"{block}.input_linear.weight": (f"{block}.experts", GATED),
        f"{block}.output_linear.weight": (f"{block}.experts", DOWN),
        f"{attention}.input_linear.weight": (attention, ("input_linear",)),
        f"{attention}.output_linear.weight": (attention, ("output_linear",)),
    }


def splits(model_type: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Split]:
    config = {"model_type": model_type, "num_hidden_layers": 1, "num_local_experts": 4}
    tensors = {f"model.layers.0.mlp.{name}": info(shape) for name, shape in shapes.items()}
    router = {f"model.layers.0.mlp.{name}.weight": info((4, 32)) for name in ("router", "gate")}
    del router[f"model.layers.0.mlp.{'gate' if model_type == 'gpt_oss' else 'router'}.weight"]
    found = layout_of(config | {"num_experts": 4, "num_experts_per_tok": 2}, tensors | router)
    return {name.rpartition("experts.")[2]: split for name, split in found.splits.items()}


@given(hidden=st.integers(1, 9), inner=st.integers(1, 9))
def test_shapes_say_which_way_round(hidden: int, inner: int) -> None:
    """Both orientations of one tensor may have a shape in common; with the other they have none."""
    plain = {
        "experts.gate_up_proj": (4, 2 * inner, hidden),
        "experts.down_proj": (4, hidden, inner),
    }
    turned = {name: (4, shape[2], shape[1]) for name, shape in plain.items()}
    for shapes, transposed in ((plain, False), (turned, True)):
        found = splits("qwen3_vl_moe", shapes)
        assert {split.transposed for split in found.values()} == {transposed}
        assert found["gate_up_proj"].shape(shapes["experts.gate_up_proj"][1:]) == (inner, hidden)
        assert found["down_proj"].shape(shapes["experts.down_proj"][1:]) == (hidden, inner)


def test_blocks_of_mxfp4_are_never_transposed() -> None:
    """GPT-OSS as it is published: hidden and inner width are one number."""
    shapes = {
        "experts.gate_up_proj_blocks": (4, 128, 2, 16),
        "experts.gate_up_proj_scales": (4, 128, 2),
        "experts.gate_up_proj_bias": (4, 128),
        "experts.down_proj_blocks": (4, 64, 2, 16),
        "experts.down_proj_scales": (4, 64, 2),
        "experts.down_proj_bias": (4, 64),
    }
    found = splits("gpt_oss", shapes)
    assert list(found) == ["gate_up_proj_blocks", "down_proj_blocks"]
    assert [split.transposed for split in found.values()] == [False, False]
    assert [split.interleaved for split in found.values()] == [True, False]


def test_shapes_that_do_not_go_together_are_not_cut() -> None:
    shapes = {"experts.gate_up_proj": (4, 30, 32), "experts.down_proj": (4, 32, 16)}
    assert splits("qwen3_vl_moe", shapes) == {}
    assert splits("qwen3_vl_moe", {"experts.gate_up_proj": (4, 32, 32)}) == {}


def test_cut() -> None:
    slab = np.arange(6 * 5).reshape(6, 5)
    split = Split(module="layers.2.mlp.experts", maps=GATED)
    gate, up = split.cut(slab)
    assert (gate == slab[:3]).all() and (up == slab[3:]).all()
    gate, up = Split(module="m", maps=GATED, interleaved=True).cut(slab)
    assert (gate == slab[[0, 2, 4]]).all() and (up == slab[[1, 3, 5]]).all()
    turned = Split(module="m", maps=GATED, transposed=True, interleaved=True)
    assert all((a == b).all() for a, b in zip(turned.cut(slab.T), (gate, up), strict=True))
    assert turned.shape((5, 6)) == (3, 5)
    assert split.target(7, "up_proj") == "layers.2.mlp.experts.7.up_proj.weight"

"""Layouts of odd families: two expert sets, idle experts, tables of expert ids."""

from __future__ import annotations

from typing import Any

import pytest
from tables import attention, info

from moeprune.architectures import layout_of
from moeprune.core.layout import ExpertTensor, TensorInfo
from moeprune.errors import CheckpointError, UnsupportedModelError

E = 12


def jetmoe(layer: int) -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    for name in ("mlp", "self_attention.experts"):
        block = f"model.layers.{layer}.{name}"
        found[f"{block}.input_linear.weight"] = info((E, 16, 32))
        found[f"{block}.output_linear.weight"] = info((E, 32, 16))
        found[f"{block}.router.layer.weight"] = info((E, 32))
        found[f"{block}.bias"] = info((32,))
    found[f"model.layers.{layer}.self_attention.kv_proj.weight"] = info((16, 32))
    return found


JETMOE = {
    "model_type": "jetmoe",
    "num_hidden_layers": 2,
    "num_local_experts": E,
    "num_experts_per_tok": 2,
}


def test_two_sets_of_a_layer_are_two_rows() -> None:
    layout = layout_of(JETMOE, jetmoe(1) | jetmoe(0))
    assert layout.rows == ((0, ""), (0, "attention"), (1, ""), (1, "attention"))
    assert layout.num_experts == (E,) * 4
    for row, (layer, expert_set) in enumerate(layout.rows):
        block = f"model.layers.{layer}.{'self_attention.experts' if expert_set else 'mlp'}"
        assert {name for name, at in layout.tensors.items() if at.row == row} == {
            f"{block}.input_linear.weight",
            f"{block}.output_linear.weight",
            f"{block}.router.layer.weight",
        }
    assert layout.set_modules == {
        "attention": ("self_attention.experts", "self_attention.experts.router")
    }


def test_layers_that_follow_take_the_ids_of_the_same_set() -> None:
    layout = layout_of(JETMOE, jetmoe(0) | jetmoe(1) | jetmoe(2))
    rows = {name: at.row for name, at in layout.tensors.items() if at.follows}
    assert len(rows) == 6
    assert all(row == (3 if "self_attention" in name else 2) for name, row in rows.items())


def test_a_third_set_is_refused() -> None:
    more = {f"model.layers.0.other.experts.{e}.up_proj.weight": info((4, 4)) for e in range(E)}
    with pytest.raises(UnsupportedModelError, match="layer 0 has two expert sets"):
        layout_of(JETMOE, jetmoe(0) | more)


def test_a_shared_bias_of_the_size_of_the_experts_is_refused() -> None:
    tensors = jetmoe(0) | {"model.layers.0.self_attention.experts.bias": info((E,))}
    with pytest.raises(UnsupportedModelError, match="lies among the experts"):
        layout_of(JETMOE, tensors)


ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_vl_moe",
    "text_config": {
        "model_type": "ernie4_5_vl_moe_text",
        "num_hidden_layers": 2,
        "moe_num_experts": E,
        "moe_k": 3,
    },
}


def ernie(*, experts: int = 2 * E, hidden: int = 32) -> dict[str, TensorInfo]:
    block = "model.layers.1.mlp"
    found = {
        f"{block}.gate.weight": info((hidden, E), "F32"),
        f"{block}.gate.weight_1": info((hidden, E), "F32"),
        f"{block}.moe_statics.e_score_correction_bias": info((2, E), "F32"),
    }
    for expert in range(experts):
        width = 16 if expert < E else 8
        found[f"{block}.experts.{expert}.up_proj.weight"] = info((width, hidden))
    return found | attention("model.layers.1")


@pytest.mark.parametrize("hidden", [32, E])
def test_vision_experts_lose_the_ids_of_the_text_experts(hidden: int) -> None:
    layout = layout_of(ERNIE, ernie(hidden=hidden))
    assert layout.num_experts == (E,) and layout.sets == ()
    for expert in range(2 * E):
        name = f"model.layers.1.mlp.experts.{expert}.up_proj.weight"
        assert layout.tensors[name] == ExpertTensor(
            row=0, role="expert", expert=expert % E, shift=expert // E
        )
    for name in ("gate.weight", "gate.weight_1", "moe_statics.e_score_correction_bias"):
        rule = layout.tensors[f"model.layers.1.mlp.{name}"]
        assert rule == ExpertTensor(row=0, role="router", axis=1)  # also where hidden is E
    assert layout.expert_bytes == (2 * 24 * hidden + 4 * (2 * hidden + 2),)


@pytest.mark.parametrize("experts", [E, 2 * E - 1, 2 * E + 1])
def test_half_a_set_is_refused(experts: int) -> None:
    with pytest.raises(CheckpointError, match=r"expert \d+, but config.json states 2 times 12"):
        layout_of(ERNIE, ernie(experts=experts))


def test_experts_of_one_set_have_one_size() -> None:
    tensors = ernie() | {"model.layers.1.mlp.experts.15.up_proj.weight": info((16, 32))}
    with pytest.raises(CheckpointError, match="expert 12 is 512 bytes and expert 15 1024"):
        layout_of(ERNIE, tensors)


LONGCAT = {
    "model_type": "longcat_flash",
    "num_layers": 2,
    "n_routed_experts": E,
    "moe_topk": 3,
    "zero_expert_num": 4,
}


def longcat(idle: int) -> dict[str, TensorInfo]:
    block = "model.layers.1.mlp"
    found = {
        f"{block}.router.classifier.weight": info((E + 4, 32)),
        f"{block}.router.e_score_correction_bias": info((E + 4,), "F32"),
    }
    for expert in range(E + idle):
        found[f"{block}.experts.{expert}.up_proj.weight"] = info((16, 32))
        if expert < E:
            found[f"{block}.experts.{expert}.down_proj.weight"] = info((32, 16))
    return found


@pytest.mark.parametrize("idle", [0, 4])
def test_idle_experts_stay_behind_the_routed_ones(idle: int) -> None:
    layout = layout_of(LONGCAT, longcat(idle))
    assert layout.idle_experts == layout.extra_rows == 4
    numbers = {at.expert for at in layout.tensors.values() if at.role == "expert"}
    assert numbers == set(range(E + idle))
    assert layout.expert_bytes == (2 * 2 * 16 * 32 + 2 * 32 + 4,)  # of a routed one


@pytest.mark.parametrize("idle", [1, 3, 5])
def test_another_number_of_idle_experts_is_refused(idle: int) -> None:
    with pytest.raises(CheckpointError, match="stores expert 12"):
        layout_of(LONGCAT, longcat(idle))


def deepseek(**changes: TensorInfo) -> dict[str, TensorInfo]:
    block = "model.layers.0.ffn"
    found = {
        f"{block}.gate.weight": info((E, 32)),
        f"{block}.gate.tid2eid": info((272, 3), "I64"),
    }
    found |= {f"{block}.experts.{e}.w1.weight": info((16, 32)) for e in range(E)}
    return found | {f"{block}.gate.{name}": header for name, header in changes.items()}


DEEPSEEK = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 1,
    "n_routed_experts": E,
    "num_experts_per_tok": 3,
}


@pytest.mark.parametrize("dtype", ["I64", "I32"])
def test_a_table_of_expert_ids_is_placed(dtype: str) -> None:
    layout = layout_of(DEEPSEEK, deepseek(tid2eid=info((272, 3), dtype)))
    rule = layout.tensors["model.layers.0.ffn.gate.tid2eid"]
    assert rule == ExpertTensor(row=0, role="table")
    assert layout.expert_bytes == (2 * 16 * 32 + 2 * 32,)


@pytest.mark.parametrize("header", [info((272, 3), "F32"), info((272,), "I64")], ids=str)
def test_a_table_of_another_kind_is_refused(header: TensorInfo) -> None:
    with pytest.raises(UnsupportedModelError, match=r"tid2eid' is .*; a table of expert numbers"):
        layout_of(DEEPSEEK, deepseek(tid2eid=header))


def test_a_table_without_experts_is_refused() -> None:
    table = {"model.layers.1.ffn.gate.tid2eid": info((272, 3), "I64")}
    with pytest.raises(UnsupportedModelError, match=r"layers\.1.*its layer has no experts"):
        layout_of(DEEPSEEK, deepseek() | table)

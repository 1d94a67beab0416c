"""Every rule of the layout on hand-made tables: what is cut, what follows, what is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import attention, dense, info, moe, qwen

from moeprune.architectures import layout_of
from moeprune.core.layout import ExpertTensor, TensorInfo
from moeprune.errors import CheckpointError, MoePruneError, UnsupportedModelError

Table = dict[str, TensorInfo]


def three_layers() -> Table:
    return moe("model.layers.0") | dense("model.layers.1") | moe("model.layers.2")


@given(
    num_experts=st.integers(2, 40),
    placed=st.lists(st.booleans(), min_size=1, max_size=12).filter(any),
    following=st.integers(0, 2),
    order=st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=60)
def test_any_placement_of_layers(
    num_experts: int, placed: list[bool], following: int, order: Any
) -> None:
    table: Table = {}
    for layer, has_experts in enumerate(placed):
        name = f"model.layers.{layer}"
        table |= moe(name, num_experts) if has_experts else dense(name)
    for layer in range(following):
        table |= moe(f"model.layers.{len(placed) + layer}", num_experts)
    names = list(table)
    order.shuffle(names)
    config = qwen(num_experts=num_experts, num_experts_per_tok=1, num_hidden_layers=len(placed))
    layout = layout_of(config, {name: table[name] for name in names})
    rows = [layer for layer, has_experts in enumerate(placed) if has_experts]
    assert layout.layer_ids == tuple(rows)
    one = 3 * 20 * 32 * 2 + 32 * 2
    assert layout.expert_bytes == (*[one] * (len(rows) - 1), one * (1 + following))
    for name, at in layout.tensors.items():
        layer = int(name.split(".")[2])
        assert at.follows == (layer >= len(placed))
        assert at.row == (len(rows) - 1 if at.follows else rows.index(layer))
        if at.role == "expert":
            assert at.expert == int(name.split(".")[5])
    assert len(layout.tensors) == (len(rows) + following) * (3 * num_experts + 1)
    assert list(layout.tensors) == [name for name in names if name in layout.tensors]


@pytest.mark.parametrize(
    "prefix", ["mtp.layers.0", "model.mtp.layers.0", "mtp.0", "model.mtp_layers.0", "nextn.0"]
)
def test_next_token_prediction_layers_follow_the_last_row(prefix: str) -> None:
    layout = layout_of(qwen(num_hidden_layers=...), three_layers() | moe(prefix))
    assert layout.layer_ids == (0, 2)
    follows = {name for name, at in layout.tensors.items() if at.follows}
    assert follows == {name for name in layout.tensors if name.startswith(f"{prefix}.")}
    assert len(follows) == 37
    assert {layout.tensors[name].row for name in follows} == {1}


@pytest.mark.parametrize(
    "parts",
    [
        [("up_proj.weight", (8, 16), "F8_E4M3"), ("up_proj.weight_scale_inv", (1, 1), "F32")],
        [
            ("up_proj.weight_packed", (8, 4), "I32"),
            ("up_proj.weight_scale", (8, 1), "BF16"),
            ("up_proj.weight_shape", (2,), "I64"),
            ("up_proj.weight_g_idx", (12,), "I32"),
        ],
        [("w1.qweight", (4, 8), "I32"), ("w1.qzeros", (1, 1), "I32"), ("w1.scales", (1, 8), "F16")],
        [("up_proj.weight", (64, 1), "U8"), ("up_proj.weight.absmax", (2,), "F32")],
    ],
    ids=["fp8", "compressed-tensors", "awq", "bitsandbytes"],
)
def test_what_a_stored_format_keeps_beside_an_expert_moves_along(parts: Any) -> None:
    table = moe("model.layers.0", parts=parts)
    layout = layout_of(qwen(quantization_config={"quant_method": "some"}), table)
    moved = {name for name, at in layout.tensors.items() if at.role == "expert"}
    assert moved == {name for name in table if ".mlp.experts." in name}
    assert layout.quant_method == "some"
    assert layout.expert_bytes == (
        sum(info(shape, dtype).nbytes for _, shape, dtype in parts) + 64,
    )


def gpt_oss() -> tuple[dict[str, Any], Table]:
    layer = "model.layers.0.mlp"
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 1,
        "num_local_experts": 12,
        "num_experts_per_tok": 4,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    return config, attention("model.layers.0") | {
        f"{layer}.experts.gate_up_proj_blocks": info((12, 80, 1, 16), "U8"),
        f"{layer}.experts.gate_up_proj_scales": info((12, 80, 1), "U8"),
        f"{layer}.experts.gate_up_proj_bias": info((12, 80)),
        f"{layer}.experts.down_proj_blocks": info((12, 32, 2, 16), "U8"),
        f"{layer}.experts.down_proj_scales": info((12, 32, 2), "U8"),
        f"{layer}.experts.down_proj_bias": info((12, 32)),
        f"{layer}.experts.down_proj_input_scale": info((1,), "F32"),
        f"{layer}.router.weight": info((12, 32)),
        f"{layer}.router.bias": info((12,)),
    }


def test_fused_formats_are_cut_on_axis_0_and_scalars_stay() -> None:
    config, table = gpt_oss()
    layout = layout_of(config, table)
    cut = {name.rpartition("mlp.")[2] for name in layout.tensors}
    stays = {"experts.down_proj_input_scale"}
    assert cut == {name.rpartition("mlp.")[2] for name in table if ".mlp." in name} - stays
    assert {(at.axis, at.expert, at.block, at.extra) for at in layout.tensors.values()} == {
        (0, None, 1, 0)
    }
    assert layout.expert_bytes == (80 * 16 + 80 + 160 + 64 * 16 + 64 + 64 + 64 + 2,)


def test_router_scales_are_cut_with_the_router() -> None:
    table = three_layers()
    table["model.layers.0.mlp.gate.weight_scale"] = info((12, 1), "F32")
    table["model.layers.0.mlp.gate.weight_scale_2"] = info((), "F32")
    layout = layout_of(qwen(), table)
    assert layout.tensors["model.layers.0.mlp.gate.weight_scale"] == ExpertTensor(
        row=0, role="router", axis=0
    )
    assert "model.layers.0.mlp.gate.weight_scale_2" not in layout.tensors


def test_square_router_is_cut_on_its_rows() -> None:
    table = {
        name: info((12, 12)) if name.endswith("mlp.gate.weight") else header
        for name, header in three_layers().items()
    }
    layout = layout_of(qwen(), table)
    assert layout.tensors["model.layers.0.mlp.gate.weight"].axis == 0


@pytest.mark.parametrize(
    ("config", "paths"),
    [
        (qwen(num_local_experts=12), [("num_experts",), ("num_local_experts",)]),
        (
            qwen(n_routed_experts=12, moe_num_experts=None),
            [("n_routed_experts",), ("num_experts",)],
        ),
        (
            {"model_type": "qwen3_vl_moe", "num_experts": 99, "text_config": qwen()},
            [("text_config", "num_experts")],
        ),
        (
            {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": qwen()}},
            [("thinker_config", "text_config", "num_experts")],
        ),
        ({**qwen(), "text_config": {"model_type": "siglip"}}, [("num_experts",)]),
    ],
)
def test_every_spelling_of_the_count_is_found(config: Any, paths: list[tuple[str, ...]]) -> None:
    layout = layout_of(config, three_layers())
    assert list(layout.count_keys) == paths
    assert layout.layer_ids == (0, 2)


def test_defaults_of_the_family_fill_what_config_leaves_out() -> None:
    layout = layout_of(qwen(num_experts_per_tok=...), three_layers())
    assert layout.top_k == 4  # transformers' default of qwen2_moe
    config = qwen(model_type="deepseek_v3", num_experts=..., n_routed_experts=16)
    layout = layout_of(config, moe("model.layers.0", 16))
    assert (layout.num_groups, layout.top_groups) == (8, 4)
    layout = layout_of(config | {"n_group": None}, moe("model.layers.0", 16))
    assert (layout.num_groups, layout.top_groups) == (1, 1)


def test_the_gating_that_config_states_wins_where_the_family_has_several() -> None:
    def gating(**changes: Any) -> str:
        config = qwen(model_type="cohere2_moe", **changes)
        return layout_of(config, three_layers()).gating

    assert gating() == "softmax"
    assert gating(expert_selection_fn=None) == "softmax"
    assert gating(expert_selection_fn="sigmoid") == "sigmoid"
    with pytest.raises(UnsupportedModelError, match=r"'topk' \(expert_selection_fn\).*sigmoid"):
        gating(expert_selection_fn="topk")


def test_the_factor_of_a_block_is_read_from_config() -> None:
    def scale(model_type: str, **changes: Any) -> float:
        return layout_of(qwen(model_type=model_type, **changes), three_layers()).gate_scale

    assert scale("qwen2_moe", routed_scaling_factor=7.0) == 1.0
    assert scale("minimax_m3_vl_text") == 2.0
    assert scale("minimax_m3_vl_text", routed_scaling_factor=3) == 3.0
    assert scale("cohere2_moe") == 1.0  # no shared expert: nothing to average with
    assert scale("cohere2_moe", num_shared_experts=2) == 0.5
    how = {"num_shared_experts": 2, "shared_expert_combination_strategy": "sum"}
    assert scale("cohere2_moe", **how) == 1.0


@pytest.mark.parametrize("value", [None, 0, -1.0, float("nan"), float("inf"), True, "x", [2.0]])
def test_a_factor_that_is_no_positive_number_is_refused(value: Any) -> None:
    config = qwen(model_type="laguna", moe_routed_scaling_factor=value)
    with pytest.raises(CheckpointError, match=r"moe_routed_scaling_factor cannot be"):
        layout_of(config, three_layers())


def test_group_limit_only_where_the_family_applies_it() -> None:
    groups = {"n_group": 3, "topk_group": 2}
    assert layout_of(qwen(**groups), three_layers()).num_groups == 1
    config = qwen(model_type="deepseek_v2", **groups)
    assert layout_of(config, three_layers()).num_groups == 1
    config["topk_method"] = "group_limited_greedy"
    assert layout_of(config, three_layers()).num_groups == 3


def without(*names: str) -> Callable[[Table], None]:
    return lambda table: [table.pop(f"model.layers.{name}") for name in names] and None


def adding(**headers: Any) -> Callable[[Table], None]:
    return lambda table: table.update(
        {f"model.layers.{name}": header for name, header in headers.items()}
    )


def renaming(old: str, new: str) -> Callable[[Table], None]:
    def rename(table: Table) -> None:
        for name in list(table):
            if old in name:
                table[name.replace(old, new)] = table.pop(name)

    return rename


BROKEN: list[tuple[str, Callable[[Table], None], dict[str, Any], type[MoePruneError], str]] = [
    ("hole", renaming("2.mlp.experts.5.", "2.mlp.experts.12."), {}, CheckpointError, "expert 12"),
    ("last", renaming("2.mlp.experts.11.", "2.mlp.other.11."), {}, CheckpointError, "expert 11"),
    ("zero", renaming("2.mlp.experts.0.", "2.mlp.experts.00."), {}, MoePruneError, "expert"),
    ("sign", renaming("2.mlp.experts.3.", "2.mlp.experts.-3."), {}, MoePruneError, "expert"),
    ("part", without("0.mlp.experts.4.up_proj.weight"), {}, CheckpointError, r"experts\.4 has no"),
    (
        "part of 0",
        without("0.mlp.experts.0.up_proj.weight"),
        {},
        CheckpointError,
        r"experts\.0 has",
    ),
    (
        "surplus",
        adding(**{"0.mlp.experts.4.bias": info((20,))}),
        {},
        CheckpointError,
        r"experts\.0 has no 'bias', which expert 4 has",
    ),
    (
        "size",
        adding(**{"0.mlp.experts.4.up_proj.weight": info((20, 32), "F32")}),
        {},
        CheckpointError,
        "expert 0 is 3840 bytes and expert 4 5120",
    ),
    ("no router", without("2.mlp.gate.weight"), {}, UnsupportedModelError, "no router weight"),
    (
        "packed router",
        renaming("2.mlp.gate.weight", "2.mlp.gate.qweight"),
        {},
        UnsupportedModelError,
        "no router weight",
    ),
    (
        "router of another count",
        adding(**{"2.mlp.gate.weight": info((13, 32))}),
        {},
        UnsupportedModelError,
        r"\[13, 32\]",
    ),
    (
        "router alone",
        adding(**{"1.mlp.gate.weight": info((12, 32))}),
        {},
        UnsupportedModelError,
        r"'model\.layers\.1\.mlp\.gate\.weight' is a router",
    ),
    (
        "block scales of a router",
        adding(**{"0.mlp.gate.weight_scale_inv": info((2, 1), "F32")}),
        {},
        UnsupportedModelError,
        "weight_scale_inv",
    ),
    (
        "unknown bias",
        adding(**{"0.mlp.some_bias": info((12,))}),
        {},
        UnsupportedModelError,
        "some_bias",
    ),
    (
        "unknown router part",
        adding(**{"0.mlp.router_head.w": info((8, 12))}),
        {},
        UnsupportedModelError,
        "router_head",
    ),
    (
        "unknown among experts",
        adding(**{"0.mlp.experts.mystery": info((3, 32))}),
        {},
        UnsupportedModelError,
        "mystery",
    ),
    (
        "named experts",
        renaming("2.mlp.experts.", "2.mlp.experts.expert_"),
        {},
        UnsupportedModelError,
        r"layers\.2\.mlp.*no experts that",
    ),
    (
        "second set",
        adding(**{f"0.attn.experts.{e}.up_proj.weight": info((4, 4)) for e in range(12)}),
        {},
        UnsupportedModelError,
        "layer 0 has two expert sets",
    ),
    (
        "follower of another count",
        adding(**{f"3.mlp.experts.{e}.up_proj.weight": info((4, 4)) for e in range(8)}),
        {},
        CheckpointError,
        r"layers\.3\.mlp\.experts lacks expert 8",
    ),
    ("fewer", lambda table: None, {"num_experts": 11}, CheckpointError, "11 experts"),
    ("more", lambda table: None, {"num_experts": 13}, CheckpointError, "lacks expert 12"),
    (
        "half",
        lambda table: None,
        {"num_experts": 6},
        UnsupportedModelError,
        "stores 12 experts, 2 times the 6",
    ),
    (
        "aliases",
        lambda table: None,
        {"num_local_experts": 9},
        CheckpointError,
        "num_experts 12 and num_local_experts 9",
    ),
    ("list", lambda table: None, {"num_experts": [12, 12]}, UnsupportedModelError, "per layer"),
    ("text", lambda table: None, {"num_experts": "12"}, CheckpointError, "num_experts cannot be"),
    ("bool", lambda table: None, {"num_experts": True}, CheckpointError, "cannot be True"),
    ("negative", lambda table: None, {"num_experts": -1}, CheckpointError, "cannot be -1"),
    ("top-k", lambda table: None, {"num_experts_per_tok": 13}, CheckpointError, "13 experts per"),
    ("no top-k", lambda table: None, {"num_experts_per_tok": 0}, CheckpointError, "0 experts per"),
    (
        "top-k list",
        lambda table: None,
        {"num_experts_per_tok": [3, 3]},
        UnsupportedModelError,
        "per layer",
    ),
    (
        "groups",
        lambda table: None,
        {"model_type": "glm4_moe", "n_group": 5, "topk_group": 2},
        CheckpointError,
        "12 experts in 5 groups",
    ),
    (
        "chosen groups",
        lambda table: None,
        {"model_type": "glm4_moe", "n_group": 3, "topk_group": 4},
        CheckpointError,
        "chooses 4",
    ),
    (
        "per layer",
        lambda table: None,
        {"per_layer_config": {"2": {"num_experts": 9}}},
        UnsupportedModelError,
        "layer 2 its own num_experts",
    ),
    ("family", lambda table: None, {"model_type": "qwen2_moo"}, UnsupportedModelError, "qwen2_moe"),
    (
        "family number",
        lambda table: None,
        {"model_type": 5},
        UnsupportedModelError,
        "no model_type",
    ),
    ("no family", lambda table: None, {"model_type": None}, UnsupportedModelError, "model_type"),
    (
        "path as a family",
        lambda table: None,
        {"model_type": "../families/mixtral"},
        UnsupportedModelError,
        "no family",
    ),
    (
        "all follow",
        lambda table: None,
        {"num_hidden_layers": 0},
        UnsupportedModelError,
        "only next",
    ),
    (
        "no count",
        lambda table: None,
        {"num_experts": None},
        UnsupportedModelError,
        "no expert count",
    ),
]


@pytest.mark.parametrize(
    ("damage", "changes", "error", "message"),
    [case[1:] for case in BROKEN],
    ids=[case[0] for case in BROKEN],
)
def test_a_broken_model_is_refused_in_one_line(
    damage: Callable[[Table], None],
    changes: dict[str, Any],
    error: type[MoePruneError],
    message: str,
) -> None:
    table = three_layers()
    layout_of(qwen(), table)
    damage(table)
    with pytest.raises(error, match=message) as caught:
        layout_of(qwen(**changes), table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "num_hidden_layers": 1},
        {"model_type": "granitemoehybrid", "num_local_experts": 0},
        {"model_type": "gemma4_text", "num_experts": None},
        {"model_type": "jamba", "num_experts": 1},
        {},
    ],
    ids=lambda config: str(config.get("model_type")),
)
def test_a_dense_model_has_nothing_to_prune(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="has no routed experts"):
        layout_of(config, dense("model.layers.0")) if config else layout_of(config, {})


def test_experts_under_unknown_names_are_refused_by_name() -> None:
    table = three_layers()
    renaming(".mlp.experts.", ".mlp.experts.expert_")(table)
    with pytest.raises(UnsupportedModelError, match=r"mlp\.experts\.expert_\d"):
        layout_of(qwen(), table)


def test_two_routers_in_a_layer_are_refused() -> None:
    table = three_layers()
    table["model.layers.2.mlp.router.weight"] = info((12, 32))
    with pytest.raises(UnsupportedModelError, match=r"layers\.2\.mlp has 2 routers"):
        layout_of(qwen(), table)


def test_the_innermost_number_is_the_layer() -> None:
    table = {f"stacks.7.{name}": header for name, header in three_layers().items()}
    assert layout_of(qwen(), table).layer_ids == (0, 2)


@pytest.mark.parametrize("name", ["block_sparse_moe.input_linear", "moe.up_proj"])
def test_a_stack_of_another_count_is_named(name: str) -> None:
    config = qwen(model_type="granitemoe", num_local_experts=12, num_experts=...)
    table = {f"model.layers.0.{name}.weight": info((11, 40, 32))}
    with pytest.raises(CheckpointError, match=rf"{name}\.weight' is \[11, 40, 32\].* 12 experts"):
        layout_of(config, table)


def test_experts_without_a_layer_number_are_refused() -> None:
    table = {
        name.replace("layers.0.", "layer."): header for name, header in moe("layers.0").items()
    }
    with pytest.raises(UnsupportedModelError, match="no numbered layer"):
        layout_of(qwen(), table)


def test_settings_by_layer_that_do_not_touch_the_experts_are_fine() -> None:
    config = qwen(per_layer_config={"02": {"head_dim": 512}})
    assert layout_of(config, three_layers()).layer_ids == (0, 2)


def test_inputs_are_left_alone_and_names_may_be_any_text() -> None:
    config = qwen()
    before = json.dumps(config)
    table = {name.replace("model.", "модель."): header for name, header in three_layers().items()}
    table["a.²."] = info((12,))
    names = dict(table)
    first, second = layout_of(config, table), layout_of(config, table)
    assert first == second and list(first.tensors) == list(second.tensors)
    assert json.dumps(config) == before and table == names
    assert first.layer_ids == (0, 2)

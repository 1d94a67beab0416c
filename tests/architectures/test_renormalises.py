"""Whether a router renormalises: from the family file and config.json, as transformers reads it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest
from tables import info

from moeprune.architectures import family_names, layout_of, load_family
from moeprune.core.layout import MoeLayout, TensorInfo


def tensors(block: str = "mlp", router: str = "gate") -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    for layer in range(2):
        inside = f"model.layers.{layer}.{block}"
        found[f"{inside}.{router}.weight"] = info((12, 32))
        for expert in range(12):
            for name, shape in (("gate", (16, 32)), ("up", (16, 32)), ("down", (32, 16))):
                found[f"{inside}.experts.{expert}.{name}_proj.weight"] = info(shape)
    return found


def laid_out(model_type: str, **keys: Any) -> MoeLayout:
    config = {
        "model_type": model_type,
        "num_hidden_layers": 2,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "n_group": 1,
    }
    return layout_of({**config, **keys}, tensors())


@pytest.mark.parametrize(
    ("model_type", "keys", "renormalises"),
    [
        ("qwen3_moe", {"norm_topk_prob": True}, True),
        ("qwen3_moe", {"norm_topk_prob": False}, False),
        ("qwen3_moe", {"norm_topk_prob": None}, False),
        ("qwen3_moe", {}, False),
        ("qwen3_next", {}, True),
        ("mixtral", {"norm_topk_prob": False}, True),
        ("deepseek_v2", {"norm_topk_prob": True}, False),
        ("bailing_hybrid", {"moe_renormalize": False}, False),
        ("bailing_hybrid", {"moe_renormalize": True, "norm_topk_prob": True}, True),
        ("cohere2_moe", {"norm_topk_prob": False}, True),
        ("cohere2_moe", {"norm_topk_prob": False, "expert_selection_fn": "sigmoid"}, False),
        ("cohere2_moe", {"expert_selection_fn": "sigmoid"}, True),
    ],
)
def test_what_config_says(model_type: str, keys: dict[str, Any], renormalises: bool) -> None:
    layout = laid_out(model_type, **keys)
    assert layout.renormalises is renormalises and not layout.fixed_routing
    assert layout.native_policy.k2 == (3 if renormalises else 12)


def test_the_spelling_of_the_family_counts_as_in_transformers() -> None:
    from transformers import AutoConfig

    for said in (True, False):
        keys = {"norm_topk_prob": not said, "moe_renormalize": said}
        assert laid_out("kimi_linear", **keys).renormalises is said
        assert AutoConfig.for_model("kimi_linear", **keys).norm_topk_prob is said


@pytest.mark.parametrize(
    ("norm", "renormalises", "why"),
    [
        (1.0, True, ""),
        (1, True, ""),
        (None, False, ""),
        (
            2.0,
            False,
            "ffn_config.moe_normalize_expert_weights 2.0 in config.json divides",
        ),
    ],
)
def test_the_norm_of_dbrx(norm: Any, renormalises: bool, why: str) -> None:
    block = "transformer.blocks.0.ffn"
    found = {f"{block}.router.layer.weight": info((12, 32))}
    for name in ("w1", "v1", "w2"):
        found[f"{block}.experts.mlp.{name}"] = info((12 * 16, 32))
    config = {
        "model_type": "dbrx",
        "n_layers": 1,
        "ffn_config": {
            "moe_num_experts": 12,
            "moe_top_k": 3,
            "moe_normalize_expert_weights": norm,
        },
    }
    layout = layout_of(config, found)
    assert layout.renormalises is renormalises
    assert (why in layout.fixed_routing) if why else not layout.fixed_routing


@pytest.mark.parametrize("name", family_names())
def test_every_family_says_it(name: str) -> None:
    body = json.loads(
        (resources.files("moeprune.architectures") / "families" / f"{name}.json").read_text()
    )
    if "same_as" in body:
        return
    family = load_family(name)
    rules = family.renormalises
    rules = list(rules.values()) if isinstance(rules, dict) else [rules]
    for rule in rules:
        assert rule
        if rule not in ("always", "never"):
            keys = (rule,) if isinstance(rule, str) else rule
            assert any(key in family.defaults for key in keys)

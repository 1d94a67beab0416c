"""The rule set against facts measured on every MoE family of transformers 5.24.

``facts.json``: per family the tensors whose name or shape changed when the same tiny model was
saved with another expert count (12 experts; ``{L}`` the layer, ``{e}`` the expert), and the one
config key that changed. The tables here put those tensors into layers 1 and 2 of 4, among dense
layers, a vision tower with experts of its own, and a next-token-prediction layer.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tables import dense, info

from moeprune.architectures import layout_of
from moeprune.core.layout import ExpertTensor, TensorInfo

E = 12
FACTS = json.loads((Path(__file__).parent / "facts.json").read_text(encoding="utf-8"))
# Families with two expert sets have tests of their own, in test_layout_odd.py.
PLAIN = [fact for fact in FACTS if fact["entry"] not in ("jetmoe", "ernie4_5_vl_moe")]
GATING = {"sqrtsoftplus": "sqrtsoftplus", "sigmoid": "sigmoid", "softmax": "softmax"} | {
    "topk_softmax": "softmax",
    "sparsemixer": "softmax",
    "topk_sigmoid": "sigmoid",
    "logit_bias_topk_sigmoid": "sigmoid",
}


def config_of(fact: dict[str, Any]) -> dict[str, Any]:
    *inner, key = fact["count_key"].split(".")
    level = {
        "model_type": fact["text_model_type"],
        "num_hidden_layers": 4,
        key: E,
        fact["top_k_key"].split(".")[-1]: 1 if fact["entry"] == "zaya" else 3,
        "zero_expert_num": 4,
        "n_shared_experts": 2,
        "n_group": 3,
        "topk_group": 2,
    }
    if fact["entry"] in ("kimi_linear", "bailing_hybrid"):
        level["num_expert_group"] = level.pop("n_group")
    if inner:
        level = {"model_type": fact["text_model_type"], "n_layers": 4, inner[0]: level}
        del level[inner[0]]["model_type"], level[inner[0]]["num_hidden_layers"]
    for name in reversed(fact["path"].split(".") if fact["path"] else []):
        level = {name: level, "model_type": fact["model_type"], "vision_config": {"num_experts": 5}}
    return level


def tables_of(
    fact: dict[str, Any], layer: int, *, num_experts: int = E
) -> dict[str, tuple[TensorInfo, dict[str, Any]]]:
    """Stored name -> (header, what it must be in the layout)."""
    found: dict[str, tuple[TensorInfo, dict[str, Any]]] = {}
    for template, at in fact["experts"].items():
        name = template.replace("{L}", str(layer))
        if "{e}" in name:
            for expert in range(num_experts):
                where = {"role": "expert", "expert": expert}
                found[name.replace("{e}", str(expert))] = (info(at["shape"]), where)
        else:
            block = 20 if fact["entry"] == "dbrx" else 1
            where = {"role": "expert", "axis": at["axis"], "block": block}
            found[name] = (info(at["shape"]), where)
    for template, at in fact["router"].items():
        where = {"role": "router", "axis": at["axis"], "extra": at["extra"]}
        found[template.replace("{L}", str(layer))] = (info(at["shape"], "F32"), where)
    return found


@pytest.mark.parametrize("fact", PLAIN, ids=lambda fact: str(fact["entry"]))
def test_family_is_laid_out(fact: dict[str, Any]) -> None:
    prefix = next(iter(fact["experts"])).partition("{L}")[0]
    tensors: dict[str, TensorInfo] = {"model.embed_tokens.weight": info((272, 32))}
    tensors |= dense(f"{prefix}0") | dense(f"{prefix}3")
    tensors["vision_tower.blocks.0.mlp.experts.0.up_proj.weight"] = info((20, 32))
    tensors["vision_tower.blocks.0.mlp.gate.weight"] = info((E, 32))
    want: dict[str, ExpertTensor] = {}
    # The last table is a next-token-prediction layer: numbered after the model's four.
    for row, layer, follows in ((1, 2, False), (0, 1, False), (1, 4, True)):
        for name, (header, where) in tables_of(fact, layer).items():
            tensors[name] = header
            want[name] = ExpertTensor(row=row, follows=follows, **where)
    layout = layout_of(config_of(fact), tensors)
    assert dict(layout.tensors) == want
    assert layout.layer_ids == (1, 2)
    assert layout.num_experts == (E, E)
    assert layout.count_keys == (
        (*(fact["path"].split(".") if fact["path"] else []), *fact["count_key"].split(".")),
    )
    assert layout.top_k == (1 if fact["entry"] == "zaya" else 3)
    assert layout.model_type == fact["text_model_type"]
    limited = fact["groups"] and fact["text_model_type"] not in (
        "deepseek_v2",
        "deepseek_ocr2_text",
        "unlimited_ocr_text",
    )
    assert (layout.num_groups, layout.top_groups) == ((3, 2) if limited else (1, 1))
    assert [layout.gating] == [
        name for prefix, name in GATING.items() if fact["gating"].startswith(prefix)
    ]
    one = sum(
        header.nbytes // (E + where["extra"] if where["role"] == "router" else E)
        for header, where in tables_of(fact, 1).values()
        if "axis" in where
    ) + sum(
        header.nbytes for header, where in tables_of(fact, 1).values() if where.get("expert") == 0
    )
    assert layout.expert_bytes == (one, 2 * one)


@pytest.mark.parametrize("fact", PLAIN, ids=lambda fact: str(fact["entry"]))
@pytest.mark.parametrize("wrong", [E - 1, E + 1])
def test_wrong_count_is_never_laid_out(fact: dict[str, Any], wrong: int) -> None:
    config = json.loads(
        json.dumps(config_of(fact)).replace(f"{E},", f"{wrong},").replace("_group", "_none")
    )
    tensors = {name: header for name, (header, _) in tables_of(fact, 1).items()}
    with pytest.raises(Exception, match=r"experts|router") as caught:
        layout_of(config, tensors)
    assert type(caught.value).__module__ == "moeprune.errors"

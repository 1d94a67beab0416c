"""What a token activates, of a published model's config: the paper's numbers (its section 6.6)."""

import pytest
import torch

from moeprune.architectures import layout_of
from moeprune.core.cost import cost_of
from moeprune.core.layout import TensorInfo
from moeprune.core.policy import RoutingPolicy

# As Qwen3.6-35B-A3B's config.json states them; transformers' defaults of the family are its others.
QWEN = {
    "num_hidden_layers": 40,
    "hidden_size": 2048,
    "vocab_size": 248320,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def qwen():
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model("qwen3_5_moe", text_config=QWEN)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    tensors = {
        name: TensorInfo("BF16", tuple(tensor.shape), 2 * tensor.numel())
        for name, tensor in model.state_dict().items()
    }
    return layout_of(config.to_dict(), tensors), tensors


def test_numbers_of_the_paper(qwen):
    layout, tensors = qwen
    cost = cost_of(layout, tensors, policy=RoutingPolicy(k1=4, k2=16))
    assert round(cost.native.routed / 1e9, 3) == 1.007  # the paper cuts to 1.006
    assert cost.native.routed == 40 * 8 * 3 * 2048 * 512
    assert cost.routed == cost.native.routed // 2 and round(cost.routed / 1e9, 3) == 0.503
    assert cost.native.experts // 10**6 == 1132 and cost.activated.experts // 10**6 == 629
    assert round(cost.relative["experts"] - 1, 2) == -0.44
    assert round(cost.native.total / 1e9, 1) == 2.9  # "about 3.0 B"
    assert round(cost.relative["total"] - 1, 2) == -0.17
    assert cost.bytes_per_token == 2 * cost.total  # all of it is bfloat16


def test_native_pair_and_no_policy_cost_the_same(qwen):
    layout, tensors = qwen
    assert cost_of(layout, tensors, policy=RoutingPolicy(k1=8, k2=8)).activated == (
        cost_of(layout, tensors).activated
    )
    assert set(cost_of(layout, tensors).relative.values()) == {1.0}

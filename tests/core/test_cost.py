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


GPT_OSS = {
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_experts_per_tok": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
}


def built(model_type, auto_class, settings):
    """Layout and shapes of a model, of which no weight is made."""
    import transformers

    config = transformers.AutoConfig.for_model(model_type, **settings)
    with torch.device("meta"):
        model = getattr(transformers, auto_class).from_config(config)
    tensors = {
        name: TensorInfo("BF16", tuple(tensor.shape), 2 * tensor.numel())
        for name, tensor in model.state_dict().items()
    }
    return layout_of(config.to_dict(), tensors), tensors


@pytest.fixture(scope="module")
def qwen():
    return built("qwen3_5_moe", "AutoModelForImageTextToText", {"text_config": QWEN})


@pytest.mark.parametrize(
    ("layers", "experts", "total", "active"), [(24, 32, 20.91, 3.61), (36, 128, 116.83, 5.13)]
)
def test_numbers_of_a_model_card(layers, experts, total, active):
    """gpt-oss, whose card counts as we do: the output layer, and not the table of embeddings."""
    settings = {**GPT_OSS, "num_hidden_layers": layers, "num_local_experts": experts}
    layout, tensors = built("gpt_oss", "AutoModelForCausalLM", settings)
    assert round(sum(info.nbytes for info in tensors.values()) / 2e9, 2) == total
    assert round(cost_of(layout, tensors).total / 1e9, 2) == active


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

"""A model that only its own code can run: copied into a checkpoint's folder by the tests.

Without attention: each token goes through blocks of experts on its own. ``OwnForCausalLM`` runs its
experts as modern code does, through transformers' registry; ``OwnListForCausalLM`` as old code
does, a list of small networks. Both store ``experts.<number>.…``.
"""

import os

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.integrations import use_experts_implementation
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

if "OWN_CODE_RAN" in os.environ:  # a test wants to know
    with open(os.environ["OWN_CODE_RAN"], "a", encoding="utf-8") as log:
        log.write("ran\n")


class OwnConfig(PreTrainedConfig):
    model_type = "own_moe"
    vocab_size: int = 272
    hidden_size: int = 32
    num_hidden_layers: int = 3
    first_k_dense_replace: int = 1
    moe_intermediate_size: int = 16
    num_experts: int = 12
    num_experts_per_tok: int = 3


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        wide, inner = config.hidden_size, config.moe_intermediate_size
        self.gate_proj = nn.Linear(wide, inner, bias=False)
        self.up_proj = nn.Linear(wide, inner, bias=False)
        self.down_proj = nn.Linear(inner, wide, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.weight = nn.Parameter(torch.zeros(config.num_experts, config.hidden_size))

    def forward(self, x):
        logits = nn.functional.linear(x, self.weight)
        weights, ids = torch.topk(logits.sigmoid(), self.top_k, dim=-1)
        return logits, weights / weights.sum(dim=-1, keepdim=True), ids


@use_experts_implementation
class Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        wide, inner, self.num_experts = (
            config.hidden_size,
            config.moe_intermediate_size,
            config.num_experts,
        )
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * inner, wide))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, wide, inner))
        self.act_fn = nn.functional.silu

    def forward(self, x, ids, weights):
        out = torch.zeros_like(x)
        for expert in range(self.num_experts):
            token, place = torch.where(ids == expert)
            gate, up = (x[token] @ self.gate_up_proj[expert].T).chunk(2, dim=-1)
            each = (self.act_fn(gate) * up) @ self.down_proj[expert].T
            out.index_add_(0, token, each * weights[token, place, None])
        return out


class Moe(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = Router(config)
        self.experts = self.make_experts(config)

    def make_experts(self, config):
        return Experts(config)

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        _, weights, ids = self.gate(flat)
        return self.run(flat, ids, weights).reshape(x.shape)

    def run(self, flat, ids, weights):
        return self.experts(flat, ids, weights)


class ListMoe(Moe):
    def make_experts(self, config):
        return nn.ModuleList(Mlp(config) for _ in range(config.num_experts))

    def run(self, flat, ids, weights):
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(ids == number)
            out.index_add_(0, token, expert(flat[token]) * weights[token, place, None])
        return out


class Layer(nn.Module):
    def __init__(self, config, number, moe):
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden_size)
        self.mlp = Mlp(config) if number < config.first_k_dense_replace else moe(config)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class OwnPreTrained(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "model"
    moe = Moe


class OwnModel(OwnPreTrained):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config, number, self.moe) for number in range(config.num_hidden_layers)
        )
        self.post_init()

    def forward(self, input_ids, attention_mask=None, use_cache=False, **_):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return BaseModelOutput(last_hidden_state=x)


class OwnForCausalLM(OwnPreTrained):
    body = OwnModel

    def __init__(self, config):
        super().__init__(config)
        self.model = self.body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, **options):
        hidden = self.model(input_ids, **options).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(hidden))


class OwnListModel(OwnModel):
    moe = ListMoe


class OwnListForCausalLM(OwnForCausalLM):
    body = OwnListModel


_STACKED = get_checkpoint_conversion_mapping("qwen2_moe")
for _name in ("OwnForCausalLM", "OwnModel"):
    register_checkpoint_conversion_mapping(_name, _STACKED, overwrite=True)

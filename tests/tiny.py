"""Tiny random Mixture-of-Experts checkpoints, as transformers saves them, with a small tokenizer.

Every family of ``FAMILIES`` has routed layers whose expert count is not a power of two; those whose
config can say so have dense layers between them. Routers are wide (std 0.5) and selection biases
are not zero, so routing is spread, differs from token to token and has no near-ties. Weights depend
only on ``seed`` and the tensor's place in the sorted names, so two calls write the same bytes.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch

VOCAB = 272  # 256 bytes and room for special tokens
EXPERTS = 12
TOP_K = 3

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 257,
}

_OWN: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "num_hidden_layers": 4,
        "mlp_only_layers": [1],
        "head_dim": 8,
        "intermediate_size": 40,
        "moe_intermediate_size": 16,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "norm_topk_prob": True,
    },
    "olmoe": {
        "num_hidden_layers": 2,
        "intermediate_size": 16,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "norm_topk_prob": False,
    },
    "mixtral": {
        "num_hidden_layers": 2,
        "head_dim": 8,
        "intermediate_size": 24,
        "num_local_experts": 10,
        "num_experts_per_tok": 2,
    },
    "gpt_oss": {
        "num_hidden_layers": 2,
        "head_dim": 8,
        "intermediate_size": 24,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "deepseek_v3": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "intermediate_size": 40,
        "moe_intermediate_size": 16,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "n_shared_experts": 1,
        "n_group": 3,
        "topk_group": 2,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "num_mtp_layers": 0,
    },
    "glm4_moe": {
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "head_dim": 8,
        "intermediate_size": 40,
        "moe_intermediate_size": 16,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": True,
        "use_qk_norm": True,
        "num_mtp_layers": 0,
    },
    "qwen3_5_moe": {
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
    },
    "granitemoe": {
        "num_hidden_layers": 2,
        "intermediate_size": 16,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "attention_multiplier": 0.35,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.8,
    },
    "llama4_text": {
        "num_hidden_layers": 4,
        "interleave_moe_layer_step": 2,
        "head_dim": 8,
        "intermediate_size": 16,
        "intermediate_size_mlp": 40,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 64,
        "no_rope_layers": [1, 1, 1, 0],
    },
}

FAMILIES: tuple[str, ...] = tuple(_OWN)

_CONFIG_CLASS = {"qwen3_5_moe": "qwen3_5_moe_text"}  # the text half of a vision-language family

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)


def tiny_config(family: str, **overrides: Any) -> Any:
    """A transformers config of the family; ``overrides`` replace single keys."""
    from transformers import AutoConfig

    settings = {**copy.deepcopy(_COMMON), **copy.deepcopy(_OWN[family]), **overrides}
    return AutoConfig.for_model(_CONFIG_CLASS.get(family, family), **settings)


def tiny_checkpoint(family: str, path: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a float32 checkpoint of ``family`` with a tokenizer into ``path`` and return it.

    ``overrides`` replace config keys (``num_hidden_layers=1``, the family's own name of the expert
    count, …); ``max_shard_size="100KB"`` splits the weights.
    """
    from transformers import AutoModelForCausalLM

    shards = {key: overrides.pop(key) for key in ("max_shard_size",) if key in overrides}
    model = AutoModelForCausalLM.from_config(tiny_config(family, **overrides)).float().eval()
    fill(model, seed=seed)
    model.save_pretrained(path, **shards)
    add_tokenizer(path)
    return path


def fill(model: torch.nn.Module, *, seed: int = 0) -> None:
    """Give every weight a seeded random value that makes each part of the model matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        # Decays that are computed, not learned; random ones would let a token see what follows it.
        if not tensor.is_floating_point() or name.endswith(("A_log", "slope_rate", "_decay")):
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if re.search(r"\b(gate|router)\.weight$", name):
            tensor.copy_(0.5 * noise)
        elif name.endswith("e_score_correction_bias"):
            tensor.copy_(0.1 * noise)
        elif tensor.dim() == 1 and name.endswith("weight"):  # norms
            tensor.add_(0.1 * noise)
        elif "embed_tokens" in name:
            tensor.copy_(noise)
        else:
            tensor.copy_(0.15 * noise)


def add_tokenizer(path: Path) -> Path:
    """Save a byte-level tokenizer (one token a byte, with a chat template) into ``path``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: token for token, letter in enumerate(letters)}
    vocab |= {"<|pad|>": 256, "<|end|>": 257, "<|im_start|>": 258, "<|im_end|>": 259}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)
    return path

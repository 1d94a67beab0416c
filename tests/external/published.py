"""Tiny checkpoints as they are published: config.json in the spelling that other loaders read.

transformers 5 saves ``num_local_experts`` and ``rope_parameters``; published files have the
family's own name of the count, ``rope_theta`` and ``rope_scaling``, and some have both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

EXPERTS = 12
_SIZES: dict[str, Any] = {  # the least that vLLM's attention and llama.cpp's rows take
    "vocab_size": 512,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 192,
}
_OWN: dict[str, dict[str, Any]] = {
    # llama.cpp and mlx-lm know no dense layers between the routed ones of a Qwen3-MoE.
    "qwen3_moe": {"head_dim": 32, "moe_intermediate_size": 64, "mlp_only_layers": []},
    "olmoe": {"intermediate_size": 64, "num_key_value_heads": 4},
    "glm4_moe": {"head_dim": 32, "moe_intermediate_size": 64, "attention_bias": True},
    "mixtral": {"head_dim": 32, "intermediate_size": 64, "num_local_experts": EXPERTS},
    "granitemoe": {"intermediate_size": 64},
    "gpt_oss": {"head_dim": 32, "intermediate_size": 64, "num_local_experts": EXPERTS},
    "qwen3_5_moe": {
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
}
_COUNT = {
    "qwen3_moe": "num_experts",
    "olmoe": "num_experts",
    "glm4_moe": "n_routed_experts",
    "mixtral": "num_local_experts",
    "granitemoe": "num_local_experts",
    "gpt_oss": "num_local_experts",
    "qwen3_5_moe": "num_experts",
}
# What the conversion script looks up in a GLM tokenizer.
_GLM_TOKENS = ["[gMASK]", "<|user|>", "<|observation|>", "<|endoftext|>"]
# llama.cpp reads no tokenizer without merges.
_MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("r", "e")]


def published_checkpoint(
    family: str, path: Path, *, both_spellings: bool = False, **overrides: Any
) -> Path:
    """Write a float32 checkpoint of ``family``, 12 experts a layer and 3 a token, into ``path``.

    ``overrides`` replace keys of its config.
    """
    from tiny import tiny_checkpoint

    tiny_checkpoint(family, path, **{**_SIZES, **_OWN[family], **overrides})
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    rope = config["rope_parameters"]
    own = {
        _COUNT[family]: EXPERTS,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None,
        "torch_dtype": config["dtype"],
    }
    if "partial_rotary_factor" in rope:
        own["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if both_spellings:
        own["num_local_experts"] = EXPERTS
    else:
        for key in {"num_local_experts", "rope_parameters", "dtype"} - {_COUNT[family]}:
            config.pop(key, None)
    text = json.dumps({**config, **own}, indent=2)
    (path / "config.json").write_text(text + "\n", encoding="utf-8")
    _add_tokens(path)
    return path


def _add_tokens(path: Path) -> None:
    file = path / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    for text in [a + b for a, b in _MERGES] + _GLM_TOKENS:
        model["vocab"][text] = len(model["vocab"])
    model["merges"] = [list(pair) for pair in _MERGES]
    for text in _GLM_TOKENS:
        added.append({**added[-1], "id": model["vocab"][text], "content": text})
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def transformers_logits(
    folder: Path, tokens: list[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Logits (tokens, vocabulary) of plain transformers on ``folder``."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        experts_implementation="eager",  # the only one that runs in float64
        output_loading_info=True,
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], (kind, report[kind])
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens]), use_cache=False).logits[0]

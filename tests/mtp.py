"""Tiny checkpoints with next-token-prediction (MTP) layers, named as real ones name theirs.

transformers finds such a layer of deepseek_v3 and glm4_moe by the layer count of the published
models, so these have as many layers, all but the last one dense.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny import _COMMON, add_tokenizer, fill, tiny_checkpoint

HIDDEN = 32
# Family -> config keys beside tiny.py's, and the key that counts the layers in config.json.
MTP_FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "deepseek_v3": (
        {"num_hidden_layers": 61, "first_k_dense_replace": 59, "num_nextn_predict_layers": 1},
        "num_nextn_predict_layers",
    ),
    "glm4_moe": (
        {"num_hidden_layers": 46, "first_k_dense_replace": 44, "num_nextn_predict_layers": 1},
        "num_nextn_predict_layers",
    ),
    "mellum": ({}, "num_nextn_predict_layers"),
    "nemotron_h": ({}, "num_nextn_predict_layers"),
    "qwen3_5_moe": ({"mtp_num_hidden_layers": 1}, "mtp_num_hidden_layers"),
}

# What the names of the layer's tensors begin with, as the published checkpoints have them.
MTP_PREFIX = {
    "deepseek_v3": "model.layers.61.",
    "glm4_moe": "model.layers.46.",
    "mellum": "mtp.",
    "nemotron_h": "mtp.",
    "qwen3_5_moe": "mtp.",
}
ATTENTION = re.compile(r"model\.layers\.(\d+)\.self_attn\.")
# Families that tiny.py does not have.
_OWN: dict[str, dict[str, Any]] = {
    "mellum": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 16,
        "head_dim": 8,
        "intermediate_size": 40,
        "moe_intermediate_size": 16,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
    },
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        "head_dim": 8,
        "intermediate_size": 40,
        "moe_intermediate_size": 16,
        "moe_shared_expert_intermediate_size": 16,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_group": 3,
        "topk_group": 2,
        "ssm_state_size": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "chunk_size": 16,
        "use_mamba_kernels": False,
        "num_nextn_predict_layers": 0,
    },
}


def mtp_checkpoint(family: str, path: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """A checkpoint of ``family`` with one MTP layer that has experts of its own."""
    settings, key = MTP_FAMILIES[family]
    if family in _OWN:
        _untiny(family, path, seed=seed)
    else:
        tiny_checkpoint(family, path, seed=seed, **{**settings, **overrides})
    config = json.loads((path / "config.json").read_text())
    for spelling in ("num_mtp_layers", key):
        config.pop(spelling, None)
    config[key] = 1
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shards = sorted(path.glob("*.safetensors"))
    assert len(shards) == 1
    tensors = load_file(shards[0])
    save_file(tensors | _layer(family, tensors, seed=seed), shards[0], metadata={"format": "pt"})
    return path


def _untiny(family: str, path: Path, *, seed: int) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **_COMMON, **_OWN[family])
    model = AutoModelForCausalLM.from_config(config).float().eval()
    fill(model, seed=seed)
    model.save_pretrained(path)
    add_tokenizer(path)


def _layer(family: str, tensors: dict[str, torch.Tensor], *, seed: int) -> dict[str, torch.Tensor]:
    """The last layer once more with other values, and what joins it to the main model."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def noise(*shape: int, scale: float = 0.15) -> torch.Tensor:
        return scale * torch.randn(shape, generator=generator)

    if family == "nemotron_h":  # an attention and a MoE layer make one step
        copied = {"2": "0", "3": "1"}
        return {
            f"mtp.layers.{copied[match[1]]}.{match[2]}": value + noise(*value.shape)
            for name, value in tensors.items()
            if (match := re.fullmatch(r"(?:model|backbone)\.layers\.([23])\.(.+)", name))
        } | {
            "mtp.layers.0.eh_proj.weight": noise(HIDDEN, 2 * HIDDEN),
            "mtp.layers.0.enorm.weight": noise(HIDDEN),
            "mtp.layers.0.hnorm.weight": noise(HIDDEN),
            "mtp.layers.1.final_layernorm.weight": noise(HIDDEN),
        }
    named = MTP_PREFIX[family].startswith("mtp.")
    here = MTP_PREFIX[family] + ("layers.0" if named else "")
    number = max(int(m[1]) for m in (re.match(ATTENTION, name) for name in tensors) if m)
    last = f"model.layers.{number}"
    made = {
        name.replace(last, here.rstrip("."), 1): value + noise(*value.shape)
        for name, value in tensors.items()
        if name.startswith(f"{last}.")
    }
    norm = torch.ones(HIDDEN)
    if named:
        made |= {
            "mtp.fc.weight": noise(HIDDEN, 2 * HIDDEN),
            "mtp.pre_fc_norm_embedding.weight": norm + noise(HIDDEN),
            "mtp.pre_fc_norm_hidden.weight": norm + noise(HIDDEN),
            "mtp.norm.weight": norm + noise(HIDDEN),
        }
    else:
        made |= {
            f"{here}enorm.weight": norm + noise(HIDDEN),
            f"{here}hnorm.weight": norm + noise(HIDDEN),
            f"{here}eh_proj.weight": noise(HIDDEN, 2 * HIDDEN),
            f"{here}shared_head.norm.weight": norm + noise(HIDDEN),
            f"{here}embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(),
            f"{here}shared_head.head.weight": tensors["lm_head.weight"].clone(),
        }
    return made

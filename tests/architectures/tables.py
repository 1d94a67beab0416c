"""Tables of stored names and shapes, as headers would give them; nothing is written to disk."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from moeprune.core.layout import TensorInfo

SIZE = {"F32": 4, "BF16": 2, "I32": 4, "I64": 8, "U8": 1, "F8_E4M3": 1, "F16": 2}


def info(shape: Sequence[int], dtype: str = "BF16") -> TensorInfo:
    return TensorInfo(dtype, tuple(shape), SIZE[dtype] * math.prod(shape))


def attention(layer: str) -> dict[str, TensorInfo]:
    """What every layer has, with names that look a little like a router's or an expert's."""
    return {
        f"{layer}.self_attn.q_proj.weight": info((32, 32)),
        f"{layer}.self_attn.gate.weight": info((12, 32)),
        f"{layer}.input_layernorm.weight": info((32,)),
    }


def dense(layer: str) -> dict[str, TensorInfo]:
    return {
        f"{layer}.mlp.{part}_proj.weight": info((40, 32)) for part in ("gate", "up", "down")
    } | attention(layer)


def moe(
    layer: str,
    num_experts: int = 12,
    *,
    parts: Iterable[tuple[str, Sequence[int], str]] = (
        ("gate_proj.weight", (20, 32), "BF16"),
        ("up_proj.weight", (20, 32), "BF16"),
        ("down_proj.weight", (32, 20), "BF16"),
    ),
) -> dict[str, TensorInfo]:
    """A layer of the common kind: per-expert tensors, ``mlp.gate``, a shared expert."""
    table = {f"{layer}.mlp.gate.weight": info((num_experts, 32))}
    for expert in range(num_experts):
        for part, shape, dtype in parts:
            table[f"{layer}.mlp.experts.{expert}.{part}"] = info(shape, dtype)
    table[f"{layer}.mlp.shared_expert.gate_proj.weight"] = info((12, 32))
    table[f"{layer}.mlp.shared_expert_gate.weight"] = info((1, 32))
    table[f"{layer}.mlp.shared_expert.gate_proj.bias"] = info((12,))
    return table | attention(layer)


def qwen(**changes: Any) -> dict[str, Any]:
    """config.json of the common kind."""
    config = {
        "model_type": "qwen2_moe",
        "num_hidden_layers": 3,
        "num_experts": 12,
        "num_experts_per_tok": 3,
    }
    return {key: value for key, value in (config | changes).items() if value is not ...}

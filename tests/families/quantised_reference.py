"""The source of a quantised export with its experts' numbers replaced by those that were written.

What lies where in a stack of all experts is spelled out here by hand, from transformers' modules.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dequantised import plain_weights, stored
from safetensors.torch import save_file

TRANSPOSED = ("aria", "gpt_oss", "llama4", "llama4_text")
# Stored name -> the module that single experts are named by, and the maps in the stack.
STACKS = {
    r"(.+[.]experts)[.](?:gate_up_proj|fc1[.]weight|w13_weight)": ("gate_proj", "up_proj"),
    r"(.+[.]experts)[.](?:down_proj|fc2[.]weight|w2_weight)": ("down_proj",),
    r"(.+[.]self_attention[.]experts)[.]input_linear[.]weight": ("input_linear",),
    r"(.+[.]self_attention[.]experts)[.]output_linear[.]weight": ("output_linear",),
    r"(.+[.](?:mlp|block_sparse_moe))[.]input_linear[.]weight": ("gate_proj", "up_proj"),
    r"(.+[.](?:mlp|block_sparse_moe))[.]output_linear[.]weight": ("down_proj",),
    r"(.+[.]moe)[.]gate_proj[.]weight": ("gate_proj",),
    r"(.+[.]moe)[.]up_proj[.]weight": ("up_proj",),
    r"(.+[.]moe)[.]down_proj[.]weight": ("down_proj",),
    r"(.+[.]ffn[.]experts)[.]mlp[.]w1": ("gate_proj",),
    r"(.+[.]ffn[.]experts)[.]mlp[.]v1": ("up_proj",),
    r"(.+[.]ffn[.]experts)[.]mlp[.]w2": ("down_proj",),
}


def write_replaced(name: str, source: Path, export: Path, folder: Path) -> Path:
    """The checkpoint that the export stands for, stored as the source is.

    Args:
        name: of the family's file.
        source: of the export, of which all experts stay.
        export: quantised.
        folder: to make.
    """
    decoded = plain_weights(export)
    assert decoded
    plain = stored(export).keys()  # of layers that stay as they are, where they differ
    tensors = stored(source)
    for stored_name, tensor in tensors.items():
        if stored_name in decoded:
            tensor.copy_(torch.from_numpy(decoded.pop(stored_name)))
            continue
        for pattern, maps in STACKS.items():
            found = re.fullmatch(pattern, stored_name)
            if found is not None and stored_name not in plain:
                module = re.sub(r"(?<![.]experts)$", ".experts", found[1])
                tensor.copy_(_stack(name, stored_name, module, maps, decoded, tensor))
                break
    assert not decoded, sorted(decoded)[:3]  # every number that was written has a place
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix == ".json" and "safetensors" not in path.name:
            shutil.copyfile(path, folder / path.name)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _stack(
    family: str,
    name: str,
    module: str,
    maps: tuple[str, ...],
    decoded: dict[str, np.ndarray],
    like: torch.Tensor,
) -> torch.Tensor:
    experts = 1 + max(
        int(key.removeprefix(f"{module}.").split(".")[0])
        for key in decoded
        if key.startswith(f"{module}.")
    )
    slabs = []
    for expert in range(experts):
        parts = [decoded.pop(f"{module}.{expert}.{one}.weight") for one in maps]
        slab = np.concatenate(parts)
        if len(parts) == 2 and (family == "gpt_oss" or name.endswith("w13_weight")):
            slab = np.empty_like(slab)
            slab[0::2], slab[1::2] = parts
        if family in TRANSPOSED or name.endswith("mlp.w2"):
            slab = slab.T
        slabs.append(np.ascontiguousarray(slab))
    assert len(slabs) in (like.shape[0], like.shape[0] // slabs[0].shape[0])
    return torch.from_numpy(np.stack(slabs)).reshape(like.shape)


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return found

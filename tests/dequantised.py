"""The plain checkpoint that a quantised export stands for, by the numpy readers of ``quant``.

They were written for stored formats of others and share no code with what writes the schemes.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from moeprune.core.layout import TensorInfo
from moeprune.quant import Raw, plain_weight

_LEAVES = re.compile(
    r"(?P<module>.+)\.(?P<leaf>weight(?:_packed|_scale|_shape|_scale_inv|"
    r"\.(?:absmax|quant_map|nested_absmax|nested_quant_map|quant_state\..+))?)"
)
_SPELLED = {
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
}


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def raw(tensor: torch.Tensor) -> Raw:
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return Raw(TensorInfo(_SPELLED[tensor.dtype], tuple(tensor.shape), len(data)), data)


def plain_weights(export: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Weight of the plain checkpoint -> its numbers, of every quantised one; (out, in) float64."""
    settings = json.loads((export / "config.json").read_text("utf-8"))["quantization_config"]
    tensors = stored(export)
    modules: dict[str, dict[str, Raw]] = {}
    for name, tensor in tensors.items():
        named = _LEAVES.fullmatch(name)
        if named is not None:
            modules.setdefault(named["module"], {})[named["leaf"]] = raw(tensor)
    found = {}
    for module, parts in modules.items():
        if len(parts) > 1:
            weight = plain_weight(parts, settings)
            assert weight is not None, module
            found[f"{module}.weight"] = weight
    return found


def write_reference(export: Path, folder: Path) -> Path:
    """The checkpoint that the export stands for: no quantisation, the same numbers and code."""
    quantised = plain_weights(export)
    modules = {name.removesuffix(".weight") for name in quantised}
    rest = {
        name: tensor
        for name, tensor in stored(export).items()
        if name.partition(".weight")[0] not in modules
    }
    config = json.loads((export / "config.json").read_text("utf-8"))
    dtype = getattr(torch, config.get("dtype", "float32"))
    plain = {name: torch.from_numpy(value).to(dtype) for name, value in quantised.items()}
    folder.mkdir()
    for path in export.iterdir():
        if path.suffix in (".json", ".py") and "safetensors" not in path.name:
            shutil.copyfile(path, folder / path.name)
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(rest | plain, folder / "model.safetensors", metadata={"format": "pt"})
    return folder

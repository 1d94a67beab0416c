"""Checkpoints in four bits as bitsandbytes itself writes them, for tests of what reads them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from bitsandbytes import functional
from safetensors import safe_open
from safetensors.torch import save_file

EXPERT = re.compile(r"\.experts\.\d+\..+\.weight$")


def settings(*, double: bool, skip: list[str], kind: str = "nf4") -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "_load_in_4bit": True,
        "_load_in_8bit": False,
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_use_double_quant": double,
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_threshold": 6.0,
        "llm_int8_skip_modules": skip,
    }


def four_bit_copy(
    source: Path,
    out: Path,
    *,
    double: bool = False,
    names: re.Pattern[str] = EXPERT,
    block: int = 64,
    kind: str = "nf4",
    dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Write ``source`` with the weights of these names in four bits, after rounding to ``dtype``.

    Returns:
        The numbers of each of them.
    """
    shutil.copytree(source, out)
    plain, skip = {}, []
    for file in sorted(out.glob("*.safetensors")):
        written = {}
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                weight = opened.get_tensor(name)
                if not names.search(name):
                    written[name] = weight
                    if weight.ndim == 2 and "embed" not in name:
                        skip.append(name.removesuffix(".weight"))
                    continue
                packed, state = functional.quantize_4bit(
                    weight.to(dtype or weight.dtype),
                    blocksize=block,
                    quant_type=kind,
                    compress_statistics=double,
                )
                plain[name] = decoded(packed, state)
                written[name] = packed
                for key, value in state.as_dict(packed=True).items():
                    written[f"{name}.{key}"] = value.clone()
        save_file(written, file, metadata={"format": "pt"})
    (out / "model.safetensors.index.json").unlink(missing_ok=True)
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] = settings(double=double, skip=skip, kind=kind)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    return plain


def decoded(packed: torch.Tensor, state: Any) -> torch.Tensor:
    """The numbers of a weight, by the definition: bitsandbytes' CPU kernel errs on narrow rows."""
    absmax = state.absmax.float()
    if state.nested:
        inner = state.state2
        code = inner.code[state.absmax.long()]
        absmax = code * inner.absmax[torch.arange(len(code)) // inner.blocksize] + state.offset
    halves = torch.stack([packed.view(-1) >> 4, packed.view(-1) & 15], 1).view(-1)
    number = torch.arange(state.shape.numel())
    values = state.code[halves.long()[: len(number)]] * absmax[number // state.blocksize]
    return values.to(state.dtype).view(state.shape)


def plain_copy(source: Path, out: Path, plain: dict[str, torch.Tensor]) -> Path:
    """Write ``source`` with these numbers in place of its own."""
    shutil.copytree(source, out)
    for file in sorted(out.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            stored = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        for name, numbers in plain.items():
            if name in stored:
                stored[name] = numbers.to(stored[name].dtype)
        save_file(stored, file, metadata={"format": "pt"})
    return out

"""Folded exports for tests: stats without a calibration, and what each stored tensor became."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import synthetic
import torch
from safetensors.torch import load_file

from moeprune.core.stats import CalibrationStats
from moeprune.stages.identify import open_model

LAST_MAP = re.compile(r"\.experts\.(\d+\.)?(down_proj|w2)\b")


def made_up_stats(model: Path, *, seed: int = 0) -> CalibrationStats:
    """Stats of this model by its facts, of tokens that nobody measured."""
    return synthetic.stats(open_model(model).facts, domains=["d"], tokens_F=(3, 3, 3, 3), seed=seed)


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= load_file(file)
    return found


def record_of(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((path / "moeprune.json").read_text("utf-8"))
    return body


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    alike = (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
    return alike and torch.equal(bits(mine), bits(theirs))

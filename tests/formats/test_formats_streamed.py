"""Quantised checkpoints read a layer at a time: the same bytes of stats as loaded whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantisers import LOADED, quantised
from test_formats_fused import mxfp4_gpt_oss

import moeprune

TEXTS = [f"{number} mills stood where {number} streams left the wood. " * 2 for number in range(9)]


@pytest.mark.parametrize("name", LOADED)
def test_same_stats(name: str, tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", LOADED[name])
    check(source, tmp_path)


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_same_stats_of_mxfp4(dtype: str, tmp_path: Path) -> None:
    source, _ = mxfp4_gpt_oss(tmp_path / "source")
    check(source, tmp_path, dtype=dtype)


def check(source: Path, tmp_path: Path, **options: Any) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": line}) + "\n" for line in TEXTS))
    for output, memory in (("whole", None), ("waves", "8GB")):
        moeprune.calibrate(
            source,
            output=tmp_path / output,
            domains={"text": str(text)},
            batch_tokens=150,
            memory=memory,
            **options,
        )
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "waves").read_bytes()

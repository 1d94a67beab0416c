"""Quantised checkpoints read a layer at a time: the same bytes of stats as loaded whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from quantisers import LOADED, quantised

import moeprune

TEXTS = [f"{number} mills stood where {number} streams left the wood. " * 2 for number in range(9)]


@pytest.mark.parametrize("name", LOADED)
def test_same_stats(name: str, tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", LOADED[name])
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": line}) + "\n" for line in TEXTS))
    for output, memory in (("whole", None), ("waves", "8GB")):
        moeprune.calibrate(
            source,
            output=tmp_path / output,
            domains={"text": str(text)},
            batch_tokens=150,
            memory=memory,
        )
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "waves").read_bytes()

"""Every family: what a loss says of a choice is γ · δ, δ of the block really run without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from choice_reference import check, heard
from family_data import family_data, params, write_checkpoint
from test_loss_families import FLOAT32, INSIDE_FLOAT32, REFUSED, batch, read_back

from moeprune.observe.load import load_causal_lm
from moeprune.stages.identify import open_model

# Here the masked expert changes more than what the experts add: weights of shared experts.
WHOLE_BLOCK = ("inkling_mm_model", "inkling_text", "jetmoe", "llama4", "llama4_text")


@pytest.mark.parametrize("name", params())
def test_changes(name: str, tmp_path: Path, record_property: Any) -> None:
    data = family_data(name)
    record_property("family", data.entry)
    if name in REFUSED:
        return
    path = write_checkpoint(data, tmp_path / "m")
    layout = open_model(path).layout
    model, plain = load_causal_lm(path), load_causal_lm(path)
    if hasattr(plain, "set_experts_implementation"):
        plain.set_experts_implementation("eager")
    if name not in FLOAT32:
        model, plain = model.double(), plain.double()
    read = batch("right")
    with heard() as said:
        read_back(model, layout, read)
    exact = name not in FLOAT32 + INSIDE_FLOAT32
    check(plain, layout, read, said, whole=name in WHOLE_BLOCK, tolerance=1e-6 if exact else 1e-4)

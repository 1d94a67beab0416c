"""verify --forward of every family in four bits: each number, and what transformers computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_data import FamilyData, family_data, family_files, write_checkpoint

import moeprune
from moeprune.stages.verify import verify

# Widths of which a block of 64 is a multiple.
WIDER: dict[str, dict[str, Any]] = {
    "dbrx": {"ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 12, "moe_top_k": 3}}
}


@pytest.mark.families
@pytest.mark.parametrize("name", sorted(family_files()))
def test_the_source_with_the_numbers_of_the_export(name: str, tmp_path: Path) -> None:
    data = family_data(name)
    fields = {key: getattr(data, key) for key in data.__dataclass_fields__}
    data = FamilyData(**{**fields, "config": {**data.config, **WIDER.get(name, {})}})
    source = write_checkpoint(data, tmp_path / "source")
    out = moeprune.export(source, output=tmp_path / "out", quantize="nf4")
    report = verify(out, source=source, forward=True, tolerance=1e-5)
    assert report.ok, report.to_text()
    told, native = moeprune.inspect(out), moeprune.inspect(source)
    assert told.not_runnable is None
    assert (told.parameters, told.expert_parameters) == (
        native.parameters,
        native.expert_parameters,
    )
    assert told.token.total == native.token.total
    assert told.token.bytes_per_token < native.token.bytes_per_token

"""A model whose routing table is rewritten says so before and after."""

from __future__ import annotations

from pathlib import Path

from family_data import family_data, write_checkpoint
from uneven import uneven_plan

from moeprune.cli.export_text import preview_text
from moeprune.stages.export import prepare


def test_the_preview_counts_tables(tmp_path: Path) -> None:
    source = write_checkpoint(family_data("deepseek_v4"), tmp_path / "source")
    plan = uneven_plan(source)
    prepared = prepare(source, plan=plan, output=tmp_path / "out", per_layer=True)
    tables = [edit.source for edit in prepared.edits if prepared.action(edit) == "remap"]
    assert tables == ["model.layers.0.ffn.gate.tid2eid"]
    assert ", and 1 with new expert ids; " in preview_text(prepared)
    assert not (tmp_path / "out").exists()

"""A model whose routing table is rewritten says so before and after, and streams from the Hub."""

from __future__ import annotations

from pathlib import Path

from family_data import family_data, write_checkpoint
from hubclient import call_client
from hubfiles import hub_of
from uneven import uneven_plan

from moeprune.cli.export_text import preview_text
from moeprune.stages.preparing import prepare


def test_the_preview_counts_tables(tmp_path: Path) -> None:
    source = write_checkpoint(family_data("deepseek_v4"), tmp_path / "source")
    plan = uneven_plan(source)
    prepared = prepare(source, plan=plan, output=tmp_path / "out", per_layer=True)
    tables = [edit.source for edit in prepared.edits if prepared.action(edit) == "remap"]
    assert tables == ["model.layers.0.ffn.gate.tid2eid"]
    assert ", and 1 with new expert ids; " in preview_text(prepared)
    assert not (tmp_path / "out").exists()


def test_tables_and_layers_of_their_own_stream(tmp_path: Path) -> None:
    source = write_checkpoint(family_data("deepseek_v4"), tmp_path / "source")
    uneven_plan(source).save(tmp_path / "plan.json")
    options = {"plan": str(tmp_path / "plan.json"), "per_layer": True}
    with hub_of(source) as hub:
        calls = [
            ("export", ["org/name"], options | {"output": str(tmp_path / name), "stream": stream})
            for name, stream in (("out", True), ("plain", False))
        ]
        outcomes, _ = call_client(hub.url, calls, home=tmp_path / "home")
    assert ["result" in outcome for outcome in outcomes] == [True, True], outcomes
    out, plain = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("out", "plain")
    )
    assert out == plain

"""eval of a model on the Hub: it comes to the cache once, and is known by its id."""

from __future__ import annotations

import json
from pathlib import Path

from hubclient import call_client
from hubfiles import hub_of
from plans import plan_keeping
from questions import choosing
from tiny import tiny_checkpoint


def test_a_model_on_the_hub(tmp_path: Path) -> None:
    source = tiny_checkpoint("olmoe", tmp_path / "source")
    plan_keeping(source, [range(9)] * 2).save(tmp_path / "plan.json")
    options = {
        "tasks": str(choosing(tmp_path / "a.jsonl")),
        "chat_template": False,
        "device": "cpu",
        "plan": str(tmp_path / "plan.json"),
    }
    with hub_of(source) as hub:
        outcomes, _ = call_client(
            hub.url,
            [
                ("eval", ["org/name"], {**options, "output": str(tmp_path / "run")}),
                ("eval", ["org/name"], {**options, "revision": "no-such-branch"}),
            ],
            home=tmp_path / "home",
        )
    header = json.loads(outcomes[0]["result"])
    assert header["model"]["name"] == "org/name"
    assert header["variant"]["plan"]["removed"] == 6
    assert json.loads((tmp_path / "run" / "run.json").read_text("utf-8")) == header
    assert outcomes[1]["error"] == "HubError"
    assert "no-such-branch" in outcomes[1]["text"]

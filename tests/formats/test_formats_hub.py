"""export --stream of every kind of source and form: the bytes of a plain export, and a check."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hubclient import call_client
from hubfiles import hub_of
from mtp import mtp_checkpoint
from plans import plan_keeping
from quantisers import ALL, quantised
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from uneven import uneven_plan

from moeprune.core.plan import PrunePlan
from moeprune.stages.identify import open_model

INDEX = "model.safetensors.index.json"


def cut(folder: Path, *, every: int = 40) -> Path:
    """A source of one weight file in several, with names that need quoting in an address."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, at in enumerate(range(0, len(names), every)):
        file = f"größe 你#{number}?%41+.safetensors"
        save_file({name: tensors[name] for name in names[at : at + every]}, folder / file)
        weight_map |= dict.fromkeys(names[at : at + every], file)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}, ensure_ascii=False))
    return folder


def even(model: Path) -> PrunePlan:
    """The first three quarters of each router group stay."""
    facts = open_model(model).facts
    keep = []
    for count in facts.num_experts:
        size = count // facts.num_groups
        keep.append([e for e in range(count) if e % size < -(-size * 3 // 4)])
    return plan_keeping(model, keep)


def uneven(model: Path) -> PrunePlan:
    return uneven_plan(model)


Made = Callable[[Path], Path]
CASES: dict[str, tuple[Made, Callable[[Path], PrunePlan], dict[str, Any]]] = {
    "mxfp4": (lambda path: quantised(path, ALL["ct-mxfp4"])[0], even, {}),
    "fp8": (lambda path: quantised(path, ALL["fp8-blocks"])[0], even, {"shard_size": "40kB"}),
    "nvfp4": (lambda path: cut(quantised(path, ALL["modelopt-nvfp4"])[0]), even, {}),
    "stacks": (lambda path: cut(tiny_checkpoint("gpt_oss", path), every=5), even, {}),
    "per layer": (lambda path: cut(tiny_checkpoint("olmoe", path)), uneven, {"per_layer": True}),
    "padded": (lambda path: cut(tiny_checkpoint("gpt_oss", path), every=7), uneven, {"pad": True}),
    "next token": (lambda path: cut(mtp_checkpoint("deepseek_v3", path)), even, {"mtp": "prune"}),
    "without": (lambda path: cut(mtp_checkpoint("deepseek_v3", path)), even, {"mtp": "drop"}),
}


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("case", CASES)
def test_the_bytes_of_a_plain_export(case: str, tmp_path: Path) -> None:
    make, plan_of, options = CASES[case]
    source = make(tmp_path / "source")
    plan = str(tmp_path / "plan.json")
    plan_of(source).save(Path(plan))
    home = tmp_path / "home"

    def job(name: str, *, stream: bool) -> tuple[str, list[Any], dict[str, Any]]:
        output = str(tmp_path / name)
        return "export", ["org/name"], {**options, "plan": plan, "output": output, "stream": stream}

    with hub_of(source) as hub:
        calls = [
            job("out", stream=True),
            ("verify", [str(tmp_path / "out")], {"source": "org/name"}),
            job("plain", stream=False),
        ]
        (out, check, plain), _ = call_client(hub.url, calls, home=home)
    assert "result" in out and "result" in plain, (out, plain)
    assert hashes(tmp_path / "out") == hashes(tmp_path / "plain")
    assert json.loads(check["result"])["ok"], check

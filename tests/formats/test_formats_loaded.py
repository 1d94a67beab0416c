"""Formats that transformers reads on a CPU: the whole job, logits against the masked original."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from quantisers import LOADED, quantised

import moeprune
from moeprune.observe.load import load_causal_lm

TEXTS = [
    "The mill stood where the stream left the wood, and its wheel turned all night long.",
    "for i in range(10):\n    if i % 3 == 0:\n        print(i, i * i)\n",
    "She read the letter twice, folded it, and put it under the clock.",
    "Wind from the sea brings rain by evening; wind from the hills brings a clear morning.",
]


@pytest.fixture(scope="session")
def domain(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("formats") / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS) + "\n")
    return str(path)


def same_weights(model: torch.nn.Module, meaning: dict[str, torch.Tensor]) -> int:
    """The live experts are what the stored numbers mean; returns how many were compared."""
    live, compared = model.state_dict(), 0
    for name, wanted in meaning.items():
        if ".experts." not in name:
            continue
        path, _, rest = name.partition(".experts.")
        expert, part = int(rest.split(".")[0]), rest.split(".")[1]
        if part == "down_proj":
            have = live[f"{path}.experts.down_proj"][expert]
        else:
            gate, up = live[f"{path}.experts.gate_up_proj"][expert].chunk(2)
            have = gate if part == "gate_proj" else up
        torch.testing.assert_close(have, wanted, rtol=1e-5, atol=1e-6)
        compared += 1
    return compared


@pytest.mark.parametrize("name", LOADED)
def test_whole_job(name: str, domain: str, tmp_path: Path) -> None:
    source, meaning = quantised(tmp_path / "source", LOADED[name])
    assert same_weights(load_causal_lm(source, dtype="float32"), meaning) == 3 * 3 * 12
    assert moeprune.inspect(source).not_runnable is None
    stats = tmp_path / "stats.safetensors"
    moeprune.calibrate(source, output=stats, domains={"text": domain}, dtype="float32")
    plan = moeprune.plan(stats, output=tmp_path / "plan.json", method="reap", ratio=0.34)
    out = moeprune.export(source, plan=tmp_path / "plan.json", output=tmp_path / "out")
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    kept = dict(zip(plan.layer_ids, plan.keep, strict=True))
    left = {}
    for key, tensor in meaning.items():
        if ".experts." in key:
            layer, expert = int(key.split(".")[2]), int(key.split(".experts.")[1].split(".")[0])
            if expert not in kept[layer]:
                continue
            key = key.replace(f"experts.{expert}.", f"experts.{kept[layer].index(expert)}.")
        left[key] = tensor
    assert same_weights(load_causal_lm(out, dtype="float32"), left) == 3 * 3 * plan.uniform_count
    written = sum(p.stat().st_size for p in out.glob("*.safetensors"))
    assert plan.size["bytes_after"] <= written <= plan.size["bytes_after"] + 200_000


@pytest.mark.parametrize("name", ["fp8-blocks", "ct-pack-int4"])
def test_k1_and_k2(name: str, tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", LOADED[name])
    out = moeprune.export(source, output=tmp_path / "out", k1=2, k2=5)
    stored, kept = (path / "model.safetensors" for path in (source, out))
    assert kept.read_bytes() == stored.read_bytes()
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    ids = torch.tensor([list(range(3, 27))])
    with torch.no_grad():
        models = [
            load_causal_lm(out, dtype="float32", trust_remote_code=own) for own in (False, True)
        ]
        native, rerouted = (model(input_ids=ids, use_cache=False).logits for model in models)
    assert (native - rerouted).abs().max() > 1e-3

"""Files whose layers have different schemes, in transformers with moeprune imported."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dequantised import write_reference
from forked import run
from plans import plan_keeping
from tiny import VOCAB, tiny_checkpoint
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

import moeprune
from moeprune.core.quantisation import LayerSchemes

LOADING = Path(__file__).parent.parent / "quantised_loading.py"
IDS = torch.arange(40).reshape(2, 20) % VOCAB


def load(path: Path, **options: Any) -> Any:
    model, report = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **options)
    assert not any(report.values()), report
    return model.eval()


def mixed(source: Path, out: Path, *schemes: str) -> Path:
    sizes = {scheme: 16 for scheme in schemes if scheme != "none"}
    chosen = LayerSchemes(schemes=schemes, group_sizes=sizes)
    plan = replace(plan_keeping(source, [range(10)] * len(schemes)), quantize=chosen)
    return moeprune.export(source, plan=plan, output=out)


@pytest.mark.parametrize(
    "schemes",
    [("int8", "none", "int4"), ("int4", "int8", "int8"), ("int4", "none", "none")],
    ids=str,
)
def test_every_layer_is_read_in_its_scheme(schemes: tuple[str, ...], tmp_path: Path) -> None:
    source = tiny_checkpoint("qwen3_moe", tmp_path / "source")
    out = mixed(source, tmp_path / "out", *schemes)
    wanted = load(write_reference(out, tmp_path / "reference")).state_dict()
    for options in ({}, {"quantization_config": CompressedTensorsConfig(dequantize=True)}):
        model = load(out, **options)
        found = model.state_dict()
        assert found.keys() == wanted.keys()
        assert all(torch.equal(value, wanted[name]) for name, value in found.items())
    model.save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again").state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in again.items())


def test_the_folder_brings_the_reader(tmp_path: Path) -> None:
    source = tiny_checkpoint("qwen3_moe", tmp_path / "source")
    out = mixed(source, tmp_path / "out", "int8", "none", "int4")
    record = json.loads((out / "moeprune.json").read_text())["quantisation"]
    assert record["code"] == ["layered"] and "import moeprune" in (out / "README.md").read_text()
    reference = write_reference(out, tmp_path / "reference")
    ended = run([LOADING, out, reference, "--trust"])  # a process without moeprune
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout.splitlines()[-1]) < 1e-5
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()


def test_one_scheme_is_left_to_transformers(tmp_path: Path) -> None:
    source = tiny_checkpoint("qwen3_moe", tmp_path / "source")
    options = moeprune.QuantOptions(scheme="int8", group_size=16)
    out = moeprune.export(source, output=tmp_path / "out", quantize=options)
    model = load(out)
    assert not model.hf_quantizer._layered and model.is_quantized
    reference = load(write_reference(out, tmp_path / "reference"))
    with torch.no_grad():
        assert (model(IDS).logits - reference(IDS).logits).abs().max() < 1e-5

"""What a quantised export says of itself: sizes, costs, errors; before and after it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from dequantised import plain_weights, stored
from folding import record_of
from safetensors.torch import save_file
from test_export_stage import plan_for
from tiny import tiny_checkpoint

import moeprune
from moeprune.cli.main import main
from moeprune.core.quantisation import QuantOptions
from moeprune.errors import UnsupportedModelError, UsageError

Tiny = Callable[[str], Path]


def test_errors_of_every_expert_are_in_the_record_and_the_card(tiny: Tiny, tmp_path: Path) -> None:
    source, plan = tiny("qwen3_moe"), plan_for(tiny("qwen3_moe"))
    out = moeprune.export(source, plan=plan, output=tmp_path / "out", quantize="int4")
    error = record_of(out)["quantisation"]["error"]
    before, read = stored(source), plain_weights(out)
    squares = np.zeros(2)
    worst = []
    for row, (layer, keep) in enumerate(zip(plan.layer_ids, plan.keep, strict=True)):
        for number, expert in enumerate(keep):
            sums = np.zeros(2)
            for name in ("gate_proj", "up_proj", "down_proj"):
                module = f"model.layers.{layer}.mlp.experts"
                mine = read[f"{module}.{number}.{name}.weight"]
                true = before[f"{module}.{expert}.{name}.weight"].double().numpy()
                sums += np.square(mine - true).sum(), np.square(true).sum()
            relative = float(np.sqrt(sums[0] / sums[1]))
            assert error["layers"][row][number] == pytest.approx(relative, rel=1e-5)
            worst.append((relative, layer, expert))
            squares += sums
    assert error["relative"] == pytest.approx(float(np.sqrt(squares[0] / squares[1])), rel=1e-5)
    found = [(at["layer"], at["expert"]) for at in error["worst"]]
    assert found == [(layer, expert) for _, layer, expert in sorted(worst, reverse=True)[:10]]
    card = (out / "README.md").read_text("utf-8")
    assert f"source): {error['relative']:.3g}. Largest: layer {found[0][0]} expert" in card


@pytest.mark.parametrize("scheme", ["nf4", "int8", "int4", "fp8"])
def test_sizes_of_the_preview_are_those_of_the_export(
    scheme: str, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tiny("glm4_moe"), tmp_path / "out"
    plan_for(source).save(tmp_path / "plan.json")
    job = ["export", str(source), "-o", str(out), "--quantize", scheme, "--json"]
    job += ["--plan", str(tmp_path / "plan.json"), "--also", "shared"]
    assert main([*job, "--dry-run"]) == 0
    preview = json.loads(capsys.readouterr().out)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert main(job) == 0
    made = json.loads(capsys.readouterr().out)
    after = stored(out)
    assert {row["target"]: row["shape"] for row in preview["tensors"]} == {
        name: list(tensor.shape) for name, tensor in after.items()
    }
    assert preview["size"] == made["size"]
    assert made["size"]["bytes_after"] == sum(tensor.nbytes for tensor in after.values())
    assert preview["token"] == made["token"]
    parts = made["quantisation"]["parts"]
    assert preview["quantisation"]["parts"] == parts and "error" not in preview["quantisation"]
    assert sum(part["bytes_after"] for part in parts.values()) == made["size"]["bytes_after"]
    for part, count in (("expert", ".experts."), ("shared", ".shared_experts.")):
        mine = sum(tensor.nbytes for name, tensor in after.items() if count in name)
        assert parts[part]["bytes_after"] == mine
        assert parts[part]["quantised"] == parts[part]["parameters"]
    assert parts["attention"]["bytes_after"] == parts["attention"]["bytes_before"]
    record = record_of(out)["quantisation"]
    assert record == made["quantisation"] and record["options"]["also"] == ["shared"]
    # A token reads three experts of nine, and everything else but the other rows of embeddings.
    routed = parts["expert"]["bytes_after"] * 3 // 9
    assert made["token"]["routed_bytes"] == routed
    now = moeprune.inspect(out).token.native.to_json()
    assert {key: made["token"][key] for key in now} == now
    weights = {path.name: path.stat().st_size for path in out.glob("*.safetensors")}
    assert {name: preview["files"][name] for name in weights} == weights


def test_what_people_read(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ["export", str(tiny("qwen3_moe")), "-o", str(tmp_path / "out"), "--quantize", "int4"]
    assert main([*job, "--dry-run"]) == 0
    before = capsys.readouterr().out
    assert "108 quantised" in before and "relative error" not in before
    assert main(job) == 0
    text = capsys.readouterr().out
    assert "routed experts in int4" in text and "(100% of 55,296 parameters)" in text
    assert "relative error of the experts' weights 0.08" in text and "largest: layer" in text
    assert "decoding one token alone reads" in text


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--also", "attention"], "--also says how --quantize is to be done"),
        (["--group-size", "32"], "--group-size says how --quantize is to be done"),
        (["--quantize", "int8", "--also", "experts"], "--also 'experts' is none of attention"),
        (["--quantize", "int8", "--double-quant"], "--double-quant is for nf4"),
        (["--quantize", "int8", "--group-size", "24"], "group size 24"),
        (["--quantize", "int8", "--also", "shared"], "--also shared: qwen3_moe has no shared"),
        ([], "--quantize (how they are stored)"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str], line: str, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(tiny("qwen3_moe"))
    capsys.readouterr()
    assert main(["export", source, "-o", str(tmp_path / "out"), *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and line in err
    assert not list(tmp_path.iterdir())


def test_a_quantised_source_is_not_quantised_again(tiny: Tiny, tmp_path: Path) -> None:
    once = moeprune.export(tiny("qwen3_moe"), output=tmp_path / "once", quantize="int8")
    with pytest.raises(UnsupportedModelError, match=r"quantised already .* --requantize"):
        moeprune.export(once, output=tmp_path / "twice", quantize="int4")
    assert [path.name for path in tmp_path.iterdir()] == ["once"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_no_scheme_holds_names_the_weight(value: float, tmp_path: Path) -> None:
    source = tiny_checkpoint("olmoe", tmp_path / "source")
    tensors = stored(source)
    name = "model.layers.1.mlp.experts.7.up_proj.weight"
    tensors[name][3, 5] = value
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=name.removesuffix(".weight")) as caught:
        moeprune.export(source, output=tmp_path / "out", quantize="int8")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("stated", [None, "float16"])
def test_scales_have_the_type_in_which_the_model_computes(
    stated: str | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    source = tiny_checkpoint("olmoe", tmp_path / "source")
    tensors = {name: tensor.to(dtype) for name, tensor in stored(source).items()}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text("utf-8"))
    del config["dtype"]
    config |= {} if stated is None else {"torch_dtype": stated}
    (source / "config.json").write_text(json.dumps(config), "utf-8")
    out = moeprune.export(source, output=tmp_path / "out", quantize=QuantOptions(scheme="int8"))
    scales = {t.dtype for name, t in stored(out).items() if name.endswith("weight_scale")}
    assert scales == {dtype if stated is None else torch.float16}


def test_an_unknown_scheme_is_named(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--quantize 'int7' is none of nf4, int8, int4, fp8"):
        moeprune.export(tiny("qwen3_moe"), output=tmp_path / "out", quantize="int7")


@pytest.mark.parametrize(("family", "scheme"), [("gpt_oss", "int8"), ("olmoe", "nf4")])
def test_folders_with_code_say_so(
    family: str,
    scheme: str,
    tiny: Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert main(["export", str(tiny(family)), "-o", str(out), "--quantize", scheme]) == 0
    text = capsys.readouterr().out
    card = (out / "README.md").read_text("utf-8")
    recorded = record_of(out)["quantisation"].get("code")
    assert recorded and (out / "modeling_moeprune.py").exists()
    assert "trust_remote_code=True" in text
    assert 'dtype="auto", trust_remote_code=True)' in card
    assert "vllm serve" not in card


def test_folders_without_code_say_what_they_need(tiny: Tiny, tmp_path: Path) -> None:
    out = moeprune.export(tiny("olmoe"), output=tmp_path / "out", quantize="int4")
    card = (out / "README.md").read_text("utf-8")
    assert "needs the package compressed-tensors" in card and "vllm serve" in card
    assert 'dtype="auto")' in card and "code" not in record_of(out)["quantisation"]

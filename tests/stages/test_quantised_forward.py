"""verify --forward of quantised exports, and what is pruned and quantised in either order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from folding import made_up_stats
from plans import plan_keeping
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from uneven import uneven_plan

import moeprune
from moeprune.core.quantisation import SCHEMES, LayerSchemes, QuantOptions
from moeprune.errors import UnsupportedModelError
from moeprune.stages.verify import verify

KEEP = [(0, 2, 3, 5, 6, 8, 9, 11), (1, 2, 3, 4, 7, 8, 10, 11), (0, 1, 2, 3, 4, 5, 6, 7)]


def small(path: Path, family: str, dtype: torch.dtype, **overrides: Any) -> Path:
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64}
    tiny_checkpoint(family, path, **{**sizes, **overrides})
    tensors = load_file(path / "model.safetensors")
    cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    save_file(cast, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    stated = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps({**config, "dtype": stated}))
    return path


@pytest.mark.parametrize(
    ("scheme", "dtype"), [*((one, torch.bfloat16) for one in SCHEMES), ("int8", torch.float32)]
)
def test_logits_are_those_of_the_stored_numbers(
    scheme: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Pruned, with k1 and k2, and quantised: against the source with the export's numbers."""
    source = small(tmp_path / "source", "qwen3_moe", dtype)
    out = moeprune.export(
        source,
        output=tmp_path / "out",
        plan=plan_keeping(source, KEEP),
        k1=2,
        k2=4,
        quantize=scheme,
    )
    report = verify(out, source=source, forward=True, tolerance=1e-5)
    assert report.ok, report.to_text()
    assert report.logits is not None and report.logits.scale > 1
    assert "with its numbers as the export stores them and with the removed" in report.to_text()
    plain = moeprune.export(
        source, output=tmp_path / "plain", plan=plan_keeping(source, KEEP), k1=2, k2=4
    )
    body = json.loads((out / "moeprune.json").read_text())
    body.pop("quantisation")
    (plain / "moeprune.json").write_text(json.dumps(body))
    assert verify(plain, source=source, forward=True).ok  # the same, but for the numbers


@pytest.mark.parametrize("scheme", ["int8", "nf4"])
def test_stacks_that_the_folders_code_merges(scheme: str, tmp_path: Path) -> None:
    """GPT-OSS: gate and up take turns, and transformers has no conversion of single experts."""
    source = small(tmp_path / "source", "gpt_oss", torch.bfloat16, intermediate_size=64)
    counts = moeprune.inspect(source)
    keep = [[e for e in range(counts.num_experts) if e != row] for row in range(2)]
    out = moeprune.export(
        source, output=tmp_path / "out", plan=plan_keeping(source, keep), quantize=scheme
    )
    report = verify(out, source=source, forward=True, tolerance=1e-5)
    assert report.ok, report.to_text()
    told = moeprune.inspect(out)
    pruned = moeprune.export(source, output=tmp_path / "pruned", plan=plan_keeping(source, keep))
    plain = moeprune.inspect(pruned)
    assert (told.parameters, told.expert_parameters) == (plain.parameters, plain.expert_parameters)
    assert told.token.total == plain.token.total and told.total_bytes < plain.total_bytes
    code = (out / "modeling_moeprune.py").read_text()
    (out / "modeling_moeprune.py").write_text(code + "\n")
    report = verify(out, source=source, forward=True)
    assert not report.ok and report.logits is None  # what is not ours is not run
    (out / "modeling_moeprune.py").write_text(code)
    (tmp_path / "text.txt").write_text("Bread wants flour, and flour wants a mill.\n")
    stats = moeprune.calibrate(out, domains={"text": str(tmp_path / "text.txt")})
    assert stats.model.num_experts == (counts.num_experts - 1,) * 2
    shrunk = [list(range(4)), list(range(4))]
    smaller = moeprune.export(out, output=tmp_path / "smaller", plan=plan_keeping(out, shrunk))
    report = verify(smaller, source=out, forward=True, tolerance=1e-5)  # both by our code
    assert report.ok, report.to_text()
    options = QuantOptions(scheme="int4", requantize=True, group_size=32)
    again = moeprune.export(out, output=tmp_path / "again", quantize=options)
    report = verify(again, source=out)
    assert report.ok, report.to_text()
    with pytest.raises(UnsupportedModelError, match="Verify without --forward"):
        verify(again, source=out, forward=True)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_a_gain_that_is_folded_in(family: str, tmp_path: Path) -> None:
    """The stored numbers hold it already; of GPT-OSS, biases that stay plain hold it too."""
    overrides = {"intermediate_size": 64} if family == "gpt_oss" else {}
    source = small(tmp_path / "source", family, torch.float32, **overrides)
    stats = made_up_stats(source)
    out = moeprune.export(
        source, output=tmp_path / "out", k1=2, k2=4, fold_gain=stats, quantize="int8"
    )
    assert json.loads((out / "moeprune.json").read_text())["folded_gain"]
    report = verify(out, source=source, forward=True, tolerance=1e-5)
    assert report.ok, report.to_text()


def test_a_scheme_for_every_layer(tmp_path: Path) -> None:
    source = small(tmp_path / "source", "qwen3_moe", torch.bfloat16)
    layers = LayerSchemes(schemes=("int8", "none", "int4"), group_sizes={"int8": 64, "int4": 32})
    plan = replace(plan_keeping(source, KEEP), quantize=layers)
    out = moeprune.export(source, output=tmp_path / "out", plan=plan)
    report = verify(out, source=source, forward=True, tolerance=1e-5)
    assert report.ok, report.to_text()
    (tmp_path / "text.txt").write_text("Bread wants flour, and flour wants a mill.\n")
    assert moeprune.calibrate(out, domains={"text": str(tmp_path / "text.txt")}).domains


@pytest.mark.parametrize("form", ["pad", "per_layer"])
def test_forms(form: str, tmp_path: Path) -> None:
    source = small(tmp_path / "source", "glm4_moe", torch.float32, n_group=1, topk_group=1)
    out = moeprune.export(
        source, output=tmp_path / "out", plan=uneven_plan(source), quantize="nf4", **{form: True}
    )
    report = verify(out, source=source, forward=True, tolerance=1e-5)
    assert report.ok, report.to_text()


def test_a_loader_that_reads_other_numbers_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte is right, and what is loaded is not."""
    source = small(tmp_path / "source", "qwen3_moe", torch.float32)
    out = moeprune.export(source, output=tmp_path / "out", quantize="int8")
    from moeprune.observe import load

    real = load.load_causal_lm

    def wrong(path: Path, **options: Any) -> Any:
        model = real(path, **options)
        with torch.no_grad():
            model.model.layers[2].mlp.experts.down_proj[3] *= 1.01
        return model

    monkeypatch.setattr(load, "load_causal_lm", wrong)
    report = verify(out, source=source, forward=True)
    assert not report.ok and "logits differ" in report.problems[0]


def same(first: Path, second: Path) -> None:
    have, due = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert set(have) == set(due)
    for name, tensor in due.items():
        assert have[name].dtype == tensor.dtype, name
        assert torch.equal(have[name].view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize(
    ("family", "scheme", "double_quant"),
    [*(("qwen3_moe", one, False) for one in SCHEMES), ("mixtral", "nf4", True)],
)
def test_pruned_and_quantised_in_either_order(
    family: str, scheme: str, double_quant: bool, tmp_path: Path
) -> None:
    """Quantise then prune, prune then quantise, both at once: the same bytes, one by one."""
    source = small(tmp_path / "source", family, torch.bfloat16)
    options = QuantOptions(scheme=scheme, double_quant=double_quant)
    counts = moeprune.inspect(source)
    keep = [[e for e in range(counts.num_experts) if e % 4 != row % 4]
            for row in range(len(counts.layer_ids))]  # fmt: skip
    at_once = moeprune.export(
        source, output=tmp_path / "once", plan=plan_keeping(source, keep), quantize=options
    )
    quantised = moeprune.export(source, output=tmp_path / "quantised", quantize=options)
    then_pruned = moeprune.export(
        quantised, output=tmp_path / "then-pruned", plan=plan_keeping(quantised, keep)
    )
    pruned = moeprune.export(source, output=tmp_path / "pruned", plan=plan_keeping(source, keep))
    then_quantised = moeprune.export(pruned, output=tmp_path / "then-quantised", quantize=options)
    same(then_pruned, at_once)
    same(then_quantised, at_once)
    configs = [
        json.loads((folder / "config.json").read_text())
        for folder in (at_once, then_pruned, then_quantised)
    ]
    assert configs[0] == configs[1] == configs[2]
    for out, of in ((at_once, source), (then_pruned, quantised), (then_quantised, pruned)):
        report = verify(out, source=of)
        assert report.ok, report.to_text()

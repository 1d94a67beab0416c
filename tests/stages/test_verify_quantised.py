"""verify of quantised exports: what export writes passes, and nothing else does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mtp import mtp_checkpoint
from plans import plan_keeping
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from uneven import uneven_plan

import moeprune
from moeprune.core.quantisation import SCHEMES, LayerSchemes, QuantOptions
from moeprune.stages.identify import open_model
from moeprune.stages.verify import VerifyReport, verify

Tensors = dict[str, torch.Tensor]
SIZES = {"hidden_size": 64, "moe_intermediate_size": 64}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In bfloat16, as models are published."""
    path = tiny_checkpoint("qwen3_moe", tmp_path_factory.mktemp("source") / "model", **SIZES)
    tensors = load_file(path / "model.safetensors")
    narrow = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(narrow, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return path


@pytest.fixture(scope="module")
def exports(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Scheme -> an export."""
    folder = tmp_path_factory.mktemp("exports")
    return {
        scheme: moeprune.export(source, output=folder / scheme, quantize=scheme)
        for scheme in SCHEMES
    }


def changed(export: Path, folder: Path, change: Callable[[Tensors], None]) -> Path:
    """A copy of the export with other tensors."""
    out = shutil.copytree(export, folder)
    tensors = load_file(out / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def told(export: Path, folder: Path, file: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the export with another JSON file."""
    out = shutil.copytree(export, folder)
    body = json.loads((out / file).read_text())
    change(body)
    (out / file).write_text(json.dumps(body))
    return out


def failed(report: VerifyReport, *words: str) -> None:
    assert not report.ok
    text = "\n".join(report.problems)
    assert all(word in text for word in words), text
    assert all("\n" not in problem for problem in report.problems)


def group(settings: dict[str, Any]) -> dict[str, Any]:
    """The one group of compressed-tensors' settings."""
    found: dict[str, Any] = settings["config_groups"]["group_0"]
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_export_writes_passes(scheme: str, source: Path, exports: dict[str, Path]) -> None:
    report = verify(exports[scheme], source=source)
    assert report.ok, report.to_text()
    stored = load_file(exports[scheme] / "model.safetensors")
    assert report.tensors == len(stored)
    assert report.computed == sum(".experts." in name for name in stored)
    assert report.bytes_compared == sum(tensor.nbytes for tensor in stored.values())
    assert "within half a step" in report.to_text()


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (QuantOptions(scheme="int8", also=("attention",)), {}),
        (QuantOptions(scheme="nf4", double_quant=True), {}),
        (QuantOptions(scheme="int4", group_size=16), {"shard_size": "60KB"}),
        (QuantOptions(scheme="int8"), {"plan": True, "per_layer": True}),
        (QuantOptions(scheme="fp8"), {"k1": 2, "k2": 4}),
    ],
    ids=["also", "nested", "shards", "per-layer", "k1-k2"],
)
def test_every_way_of_export_passes(
    options: QuantOptions, arguments: dict[str, Any], source: Path, tmp_path: Path
) -> None:
    if arguments.get("plan"):
        arguments = {**arguments, "plan": uneven_plan(source)}
    out = moeprune.export(source, output=tmp_path / "out", quantize=options, **arguments)
    report = verify(out, source=source)
    assert report.ok, report.to_text()


def test_a_scheme_for_every_layer(source: Path, tmp_path: Path) -> None:
    layers = LayerSchemes(schemes=("int8", "none", "int4"), group_sizes={"int8": 64, "int4": 32})
    plan = replace(plan_keeping(source, [range(1, 12)] * 3), quantize=layers)
    out = moeprune.export(source, output=tmp_path / "out", plan=plan)
    report = verify(out, source=source)
    assert report.ok, report.to_text()

    def other(body: dict[str, Any]) -> None:
        body["quantisation"]["schemes"] = ["int4", "none", "int8"]

    failed(verify(told(out, tmp_path / "other", "moeprune.json", other), source=source), "int4")

    def all_int8(config: dict[str, Any]) -> None:
        groups = config["quantization_config"]["config_groups"]
        groups["group_0"]["targets"] = ["Linear"]
        groups.pop("group_1")

    wrong = told(out, tmp_path / "int8", "config.json", all_int8)
    failed(verify(wrong, source=source), "num_bits")


@pytest.mark.parametrize("scheme", ["int8", "nf4", "fp8"])
def test_padded_layers_pass_and_must_be_zero(scheme: str, tmp_path: Path) -> None:
    source = tiny_checkpoint(
        "glm4_moe", tmp_path / "source", hidden_size=64, moe_intermediate_size=64, n_group=1,
        topk_group=1,
    )  # fmt: skip
    plan = uneven_plan(source)
    out = moeprune.export(source, plan=plan, output=tmp_path / "out", pad=True, quantize=scheme)
    report = verify(out, source=source)
    assert report.ok, report.to_text()
    row = min(range(len(plan.keep)), key=lambda row: len(plan.keep[row]))
    last = max(map(len, plan.keep)) - 1
    stem = f"model.layers.{plan.layer_ids[row]}.mlp.experts.{last}.up_proj."

    def fill(tensors: Tensors) -> None:
        real = stem.replace(f"experts.{last}.", "experts.0.")
        for name in [name for name in tensors if name.startswith(stem)]:
            tensors[name] = tensors[real + name.removeprefix(stem)].clone()

    failed(verify(changed(out, tmp_path / "filled", fill), source=source), stem.rstrip("."))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_wrong_number_is_found(
    scheme: str, source: Path, exports: dict[str, Path], tmp_path: Path
) -> None:
    stem = "model.layers.2.mlp.experts.5.up_proj"
    last = "weight_packed" if scheme.startswith("int") else "weight"

    def flip(tensors: Tensors) -> None:
        tensors[f"{stem}.{last}"].view(torch.uint8).reshape(-1)[100] ^= 0x44

    report = verify(changed(exports[scheme], tmp_path / "out", flip), source=source)
    failed(report, stem, "half a step")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scales_and_experts_of_others_are_found(
    scheme: str, source: Path, exports: dict[str, Path], tmp_path: Path
) -> None:
    first, second = (f"model.layers.0.mlp.experts.{e}.down_proj." for e in (1, 2))

    def swap(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(first)]:
            other = second + name.removeprefix(first)
            tensors[name], tensors[other] = tensors[other], tensors[name]

    report = verify(changed(exports[scheme], tmp_path / "swapped", swap), source=source)
    failed(report, first.rstrip("."), second.rstrip("."))
    scale = {"nf4": "weight.absmax", "fp8": "weight_scale_inv"}.get(scheme, "weight_scale")

    def stretch(tensors: Tensors) -> None:
        tensors[first + scale].view(-1)[0] *= 1.05

    report = verify(changed(exports[scheme], tmp_path / "scaled", stretch), source=source)
    failed(report, first.rstrip("."))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_shapes_that_loaders_do_not_know_are_found(
    scheme: str, source: Path, exports: dict[str, Path], tmp_path: Path
) -> None:
    """The same bytes with an axis more; beside an NF4 weight stand rows of numbers alone."""
    stem = "model.layers.2.mlp.experts.1.gate_proj."
    names = [name for name in load_file(exports[scheme] / "model.safetensors") if stem in name]
    for number, name in enumerate(names):
        out = changed(
            exports[scheme],
            tmp_path / str(number),
            lambda tensors, name=name: tensors.update({name: tensors[name].unsqueeze(0)}),
        )
        failed(verify(out, source=source), stem.rstrip("."))


def test_what_is_lost_or_added_or_left_plain_is_found(
    source: Path, exports: dict[str, Path], tmp_path: Path
) -> None:
    stem = "model.layers.3.mlp.experts.11.gate_proj"

    def lose(tensors: Tensors) -> None:
        del tensors[f"{stem}.weight_scale"]

    failed(verify(changed(exports["int8"], tmp_path / "lost", lose), source=source), stem)

    def add(tensors: Tensors) -> None:
        tensors[f"{stem}.weight_zero_point"] = torch.zeros(1)

    failed(verify(changed(exports["int8"], tmp_path / "more", add), source=source), "zero_point")

    def plain(tensors: Tensors) -> None:
        for name in ("packed", "scale", "shape"):
            del tensors[f"{stem}.weight_{name}"]
        tensors[f"{stem}.weight"] = load_file(source / "model.safetensors")[f"{stem}.weight"]

    failed(verify(changed(exports["int8"], tmp_path / "plain", plain), source=source), stem)

    def other(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] += 1

    failed(verify(changed(exports["nf4"], tmp_path / "other", other), source=source), "q_proj")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_errors_and_shares_that_are_not_true_are_found(
    scheme: str, source: Path, exports: dict[str, Path], tmp_path: Path
) -> None:
    def better(body: dict[str, Any]) -> None:
        body["quantisation"]["error"]["layers"][1][4] *= 0.99

    out = told(exports[scheme], tmp_path / "better", "moeprune.json", better)
    failed(verify(out, source=source), "layer 2 expert 4", "relative error")

    def whole(body: dict[str, Any]) -> None:
        body["quantisation"]["error"]["relative"] /= 2

    out = told(exports[scheme], tmp_path / "whole", "moeprune.json", whole)
    failed(verify(out, source=source), "relative error")

    def nicer(body: dict[str, Any]) -> None:
        del body["quantisation"]["error"]["worst"][0]

    def another(body: dict[str, Any]) -> None:
        body["quantisation"]["error"]["worst"][0]["expert"] += 1

    for number, change in enumerate((nicer, another)):
        out = told(exports[scheme], tmp_path / f"worst{number}", "moeprune.json", change)
        failed(verify(out, source=source), "as the worst")

    def small(body: dict[str, Any]) -> None:
        body["quantisation"]["parts"]["attention"]["bytes_after"] -= 1

    out = told(exports[scheme], tmp_path / "small", "moeprune.json", small)
    failed(verify(out, source=source), "bytes")

    def part(body: dict[str, Any]) -> None:
        body["quantisation"]["parts"]["expert"]["quantised"] -= 64 * 64

    out = told(exports[scheme], tmp_path / "part", "moeprune.json", part)
    failed(verify(out, source=source), "parameters")


@pytest.mark.parametrize(
    ("scheme", "change", "word"),
    [
        ("int8", lambda s: s["ignore"].clear(), "not quantised"),
        ("int8", lambda s: s["ignore"].append("re:.*experts.*"), "is quantised"),
        ("int8", lambda s: s["config_groups"]["group_0"]["weights"].update(num_bits=4), "num_bits"),
        ("int4", lambda s: s["config_groups"]["group_0"]["weights"].update(group_size=64), "group"),
        ("int4", lambda s: s.update(quant_method="gptq"), "quant_method"),
        ("int8", lambda s: s.update(format="int-quantized"), "format"),
        ("int8", lambda s: s.pop("quantization_status"), "quantization_status"),
        ("int8", lambda s: s.update(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
        ("int8", lambda s: group(s).update(input_activations={"num_bits": 8}), "input_activations"),
        ("int8", lambda s: group(s).update(format="naive-quantized"), "format"),
        ("int8", lambda s: group(s).update(targets=["Conv2d"]), "targets"),
        ("int4", lambda s: group(s)["weights"].update(dynamic=True), "dynamic"),
        ("int4", lambda s: group(s)["weights"].update(actorder="group"), "actorder"),
        ("int4", lambda s: group(s)["weights"].update(symmetric=1), "symmetric"),
        ("fp8", lambda s: s.update(activation_scheme="static"), "activation_scheme"),
        ("int8", lambda s: s["ignore"].append(None), "no list of names"),
        ("nf4", lambda s: s.update(_load_in_8bit=True), "_load_in_8bit"),
        ("nf4", lambda s: s.update(bnb_4bit_compute_dtype="half"), "bnb_4bit_compute_dtype"),
        ("nf4", lambda s: s.update(llm_int8_threshold="6"), "llm_int8_threshold"),
        ("fp8", lambda s: s.update(weight_block_size=[32, 32]), "weight_block_size"),
        ("fp8", lambda s: s["modules_to_not_convert"].pop(), "not quantised"),
        ("nf4", lambda s: s.update(bnb_4bit_quant_type="fp4"), "bnb_4bit_quant_type"),
        ("nf4", lambda s: s["llm_int8_skip_modules"].append("up_proj"), "is quantised"),
    ],
)
def test_settings_that_loaders_would_read_wrongly_are_found(
    scheme: str,
    change: Callable[[dict[str, Any]], None],
    word: str,
    source: Path,
    exports: dict[str, Path],
    tmp_path: Path,
) -> None:
    out = told(
        exports[scheme],
        tmp_path / "out",
        "config.json",
        lambda config: change(config["quantization_config"]),
    )
    failed(verify(out, source=source), "quantization_config", word)


@pytest.mark.parametrize(
    "change",
    [
        lambda q: q.pop("error"),
        lambda q: q.update(group_size=0),
        lambda q: q["options"].update(scheme="int3"),
        lambda q: q.update(parts=[]),
        lambda q: q.update(schemes=["int8"]),
        lambda q: q.update(scheme="int4"),
        lambda q: q["error"].pop("worst"),
        lambda q: q["error"]["worst"][0].update(layer=[]),
        lambda q: q["parts"]["other"].update(bytes_after="many"),
        lambda q: q.update(schemes=["int8"] * 3, options={**q["options"], "scheme": "mixed"}),
    ],
)
def test_a_record_that_cannot_be_read_is_one_line(
    change: Callable[[dict[str, Any]], None],
    source: Path,
    exports: dict[str, Path],
    tmp_path: Path,
) -> None:
    out = told(
        exports["int8"],
        tmp_path / "out",
        "moeprune.json",
        lambda body: change(body["quantisation"]),
    )
    with pytest.raises(
        moeprune.errors.CheckpointError, match="quantisation is malformed"
    ) as caught:
        verify(out, source=source)
    assert "\n" not in str(caught.value)


def test_an_export_that_is_not_quantised_may_not_be(source: Path, tmp_path: Path) -> None:
    """Without the record, quantised tensors are not due."""
    out = moeprune.export(source, output=tmp_path / "out", quantize="int8", k1=2, k2=4)
    plain = told(out, tmp_path / "plain", "moeprune.json", lambda body: body.pop("quantisation"))
    failed(verify(plain, source=source), "is missing", "not due")


@pytest.mark.parametrize("mode", ["keep", "prune", "drop"])
@pytest.mark.parametrize(("family", "scheme"), [("qwen3_5_moe", "int8"), ("nemotron_h", "fp8")])
def test_next_token_layers(family: str, scheme: str, mode: str, tmp_path: Path) -> None:
    """Their experts are routed experts, whether all of them stay or not."""
    source = mtp_checkpoint(family, tmp_path / "source")
    layers = len(open_model(source).layout.layer_ids)
    plan = plan_keeping(source, [range(1, 12, 2)] * layers)
    out = moeprune.export(source, output=tmp_path / "out", plan=plan, mtp=mode, quantize=scheme)
    report = verify(out, source=source)
    assert report.ok, report.to_text()

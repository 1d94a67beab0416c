"""export of a plan that stores a scheme for every layer: bytes, settings, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dequantised import stored
from forked import run
from plans import plan_keeping

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.core.quantisation import LayerSchemes, QuantOptions
from moeprune.errors import UsageError
from moeprune.stages.preparing import prepare

LOADING = Path(__file__).parent.parent / "quantised_loading.py"
Tiny = Callable[[str], Path]
SIZES = {"int4": 16, "int8": 16}
SCHEMES = ("int8", "none", "int4")  # of qwen3_moe's MoE layers 0, 2 and 3
KEEP = (range(12),) * 3


def planned(
    model: Path, *, schemes: tuple[str, ...] = SCHEMES, keep=KEEP, **details: int
) -> PrunePlan:
    chosen = LayerSchemes(schemes=schemes, group_sizes=SIZES, details=details)
    some = plan_keeping(model, [range(8)] * len(schemes))  # a plan alone must remove something
    return replace(some, keep=tuple(map(tuple, keep)), quantize=chosen)


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> Path:
    return tiny("qwen3_moe")


@pytest.fixture(scope="module")
def mixed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mixed") / "out"
    return moeprune.export(model, plan=planned(model), output=out)


def test_each_layer_has_the_bytes_of_its_scheme(mixed: Path, model: Path, tmp_path: Path) -> None:
    whole = {"none": stored(model)}
    for scheme, size in SIZES.items():
        options = QuantOptions(scheme=scheme, group_size=size)
        whole[scheme] = stored(moeprune.export(model, output=tmp_path / scheme, quantize=options))
    found, expected = stored(mixed), {}
    for name, tensor in whole["none"].items():
        if ".experts." not in name:
            expected[name] = tensor
    for layer, scheme in zip((0, 2, 3), SCHEMES, strict=True):
        own = f"model.layers.{layer}.mlp.experts."
        expected |= {name: whole[scheme][name] for name in whole[scheme] if name.startswith(own)}
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype and torch.equal(tensor, expected[name]), name


def test_the_groups_name_every_module_once(mixed: Path) -> None:
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.utils import is_match

    settings = json.loads((mixed / "config.json").read_text("utf-8"))["quantization_config"]
    config = QuantizationConfig.model_validate(settings)
    tensors = stored(mixed)
    linear = torch.nn.Linear(1, 1)
    modules = {name.rpartition(".")[0] for name, tensor in tensors.items() if tensor.dim() == 2}
    for module in modules - {"model.embed_tokens"}:
        for prefix in ("", "language_model."):
            groups = [
                group.weights.num_bits
                for group in config.config_groups.values()
                if is_match(prefix + module, linear, group.targets, config.ignore)
            ]
            packed = tensors.get(f"{module}.weight_packed")
            if packed is None:
                assert not groups, module
            else:
                columns = int(tensors[f"{module}.weight_shape"][1])
                assert groups == [32 * packed.shape[1] // columns], module
    bits = [group.weights.num_bits for group in config.config_groups.values()]
    assert bits == [4, 8, 4]  # the first is of no module


def test_plain_transformers_fails_aloud(model: Path, tmp_path: Path) -> None:
    """Version 5 takes one scheme for all experts: noise, if it does not fail."""
    plan = planned(model, schemes=("int8", "int4", "int4"))
    out = moeprune.export(model, plan=plan, output=tmp_path / "out")
    ended = run([LOADING, out, model])  # a process without moeprune
    assert ended.returncode != 0 and "conversion of the weights" in ended.stderr


def test_one_scheme_beside_plain_layers_is_one_group(model: Path, tmp_path: Path) -> None:
    plan = planned(model, schemes=("int4", "none", "int4"))
    prepared = prepare(model, plan=plan, output=tmp_path / "out")
    settings = prepared.config_changes["quantization_config",]
    (group,) = settings["config_groups"].values()
    assert group["targets"] == ["Linear"]
    assert [line for line in settings["ignore"] if "layers[.](?:" in line] == [
        rf"re:.*layers[.](?:2)[.]mlp[.]experts[.]\d+[.]{name}$"
        for name in ("down_proj", "gate_proj", "up_proj")
    ]


def test_the_record_says_which_layer_is_how(mixed: Path) -> None:
    record = json.loads((mixed / "moeprune.json").read_text("utf-8"))["quantisation"]
    assert record["scheme"] == "mixed"
    assert record["schemes"] == list(SCHEMES)
    assert record["group_sizes"] == SIZES
    means = [sum(layer) / len(layer) for layer in record["error"]["layers"]]
    assert means[1] == 0.0 and 0 < means[0] < means[2] / 10
    assert record["parts"]["expert"]["quantised"] * 3 == record["parts"]["expert"]["parameters"] * 2
    card = (mixed / "README.md").read_text("utf-8")
    assert "of 1 layer int4 (groups of 16), of 1 layer int8 (groups of 16)" in card
    assert "of its experts pruned" not in card


def test_sizes_known_beforehand_are_never_exceeded(model: Path, tmp_path: Path) -> None:
    for name, quantize in (("mixed", None), ("int8", "int8")):
        plan = planned(model) if quantize is None else None
        prepared = prepare(model, plan=plan, output=tmp_path / name, quantize=quantize)
        out = moeprune.export(model, plan=plan, output=tmp_path / name, quantize=quantize)
        sizes = {path.name: path.stat().st_size for path in out.iterdir()}
        expected = prepared.contents.sizes
        assert sizes.keys() == expected.keys()
        late = {"README.md", "moeprune.json"}
        assert all(sizes[file] == expected[file] for file in sizes.keys() - late)
        assert all(0 <= expected[file] - sizes[file] < 1000 for file in late)


def test_schemes_go_with_pruning_and_other_routing(model: Path, tmp_path: Path) -> None:
    keep = ((0, 1, 2, 5, 7, 11), (1, 3, 4, 6, 8, 9), tuple(range(6, 12)))
    out = moeprune.export(
        model, plan=planned(model, keep=keep), output=tmp_path / "out", k1=2, k2=4
    )
    whole = moeprune.export(model, plan=planned(model), output=tmp_path / "whole")
    small, large = stored(out), stored(whole)
    for layer, ids in zip((0, 2, 3), keep, strict=True):
        own = f"model.layers.{layer}.mlp.experts."
        for new, old in enumerate(ids):
            names = [name for name in large if name.startswith(f"{own}{old}.")]
            assert names
            for name in names:
                assert torch.equal(small[name.replace(f"{own}{old}.", f"{own}{new}.")], large[name])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"quantize": "int8"}, "--quantize int8 something else"),
        ({"quantize": QuantOptions(scheme="mixed", also=("shared",))}, "neither --also"),
        ({"quantize": QuantOptions(scheme="mixed", group_size=8)}, "neither --also"),
        ({"quantize": "mixed", "plan": None}, "give --budget and --stats"),
    ],
)
def test_what_contradicts_the_plan_is_refused(options, says, model, tmp_path) -> None:
    with pytest.raises(UsageError) as caught:
        moeprune.export(model, output=tmp_path / "out", **{"plan": planned(model), **options})
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()

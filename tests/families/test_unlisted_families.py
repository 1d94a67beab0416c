"""Families that the list does not have: each known one, with its file hidden, described anew.

What is inferred must equal the listed description; where it cannot be told, it must be refused.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_data import family_data, family_files, write_checkpoint

import moeprune
from moeprune.architectures import (
    GROUP_KEYS,
    TOP_GROUP_KEYS,
    TOP_K_KEYS,
    Family,
    _families,
    load_family,
    stated_experts,
)
from moeprune.cli.inspect_text import inspect_text
from moeprune.core.facts import ModelFacts
from moeprune.errors import CheckpointError, MoePruneError, UnsupportedModelError
from moeprune.observe.infer import ConfigKeys, infer_family
from moeprune.stages.identify import open_model
from moeprune.stages.inspect import inspect
from moeprune.stages.unlisted import family_of

# What transformers' classes do not tell: experts outside of its registry, experts that hang off the
# layer itself, rows beside the experts', weights that are no scores, a factor that is a word, ...
REFUSED = {
    "axk1": "does more to what its experts add",
    "cohere2_moe": "which no key of config.json states",
    "cohere2_moe-sigmoid": "which no key of config.json states",
    "dbrx": "registry of experts functions serves none",
    "deepseek_v4": "not what transformers makes of it",
    "diffusion_gemma": "not one module of a block",
    "ernie4_5_vl_moe": "several expert sets under one name",
    "gemma4": "not one module of a block",
    "gemma4_text": "not one module of a block",
    "inkling_mm_model": "none of its axes counts the",
    "inkling_text": "none of its axes counts the",
    "jetmoe": "layer 0 has two expert sets",
    "llama4": "registry of experts functions serves none",
    "llama4_text": "registry of experts functions serves none",
    "muse_spark": "work on 16 values a token",
    "phimoe": "do not tell how it makes scores",
    "step3p7": "registry of experts functions serves none",
    "zaya": "none of its axes counts the",
}
# Facts of the list that hold by another name, or only for configs other than this one.
BY_CONFIG = {
    # "topk_method" decides whether the groups are used; here it was looked at whether they are.
    "deepseek_ocr2": {"groups", "groups_when", "defaults"},
    "deepseek_v2": {"groups_when", "defaults"},
    "unlimited_ocr": {"groups", "groups_when", "defaults"},
    # A factor of 1 would not be seen, and which words switch it off cannot be.
    "laguna": {"scale_unless", "defaults"},
    "beam": {"scale_unless", "defaults"},
}
EXACT = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "granitemoe", "glm4_moe", "qwen3_5_moe")


class Without:
    """The folder of families without some files."""

    def __init__(self, folder: Any, hidden: set[str]) -> None:
        self._folder, self._hidden = folder, hidden

    def iterdir(self) -> Iterator[Any]:
        return (entry for entry in self._folder.iterdir() if entry.name not in self._hidden)

    def __truediv__(self, name: str) -> Any:
        assert name not in self._hidden
        return self._folder / name


Hide = Callable[[Path], None]


def names_in(config: dict[str, Any]) -> list[str]:
    stated = stated_experts(config)
    assert stated is not None
    names = (stated.level.get("model_type"), config.get("model_type"))
    return [name for name in names if isinstance(name, str)]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """``hide(checkpoint)``: from here on, its family has no file."""
    folder = _families._folder()

    def hidden(path: Path) -> None:
        names = names_in(json.loads((path / "config.json").read_text()))
        without = Without(folder, {f"{name}.json" for name in names})
        monkeypatch.setattr(_families, "_folder", lambda: without)

    return hidden


def agreed(layers: Mapping[int, Any]) -> None:
    assert list(layers) == sorted(layers)


def inferred(path: Path) -> dict[str, Any]:
    """The description as the fields of a family file."""
    config = json.loads((path / "config.json").read_text())
    stated = stated_experts(config)
    assert stated is not None
    keys = ConfigKeys(
        count=stated.count_keys, top_k=TOP_K_KEYS, groups=GROUP_KEYS, top_groups=TOP_GROUP_KEYS
    )
    name = load_family(*names_in(config)).model_type
    return dataclasses.asdict(
        family_of(infer_family(config, keys=keys, agree=agreed), model_type=name)
    )


def as_seen(family: Family, renormalises: bool) -> dict[str, Any]:
    """The listed fields with what this config says in the place of a config key."""
    rule = family.renormalises
    keys = {rule} if isinstance(rule, str) else set(rule)
    defaults = {key: value for key, value in family.defaults.items() if key not in keys}
    seen = "always" if renormalises else "never"
    return dataclasses.asdict(family) | {"renormalises": seen, "defaults": defaults}


def check_same_facts(found: ModelFacts, want: ModelFacts) -> None:
    """All but the forms of export that only a family's own test can show to work."""
    assert want.no_per_layer or "is tested family by family" in found.no_per_layer
    assert want == dataclasses.replace(found, no_per_layer=want.no_per_layer, no_pad=want.no_pad)


@pytest.mark.parametrize("name", family_files())
def test_inferred_is_what_is_listed_or_refused(name: str, tmp_path: Path, hide: Hide) -> None:
    path = write_checkpoint(family_data(name), tmp_path / name)
    want = open_model(path)
    assert want.origin == "listed"
    if name == "longcat_flash":  # nothing but its file says that more experts than counted are due
        hide(path)
        with pytest.raises(CheckpointError, match=r"stores expert 12, but config\.json states 12"):
            open_model(path)
        return
    if name in REFUSED:
        hide(path)
        with pytest.raises(UnsupportedModelError, match=REFUSED[name]) as caught:
            open_model(path)
        assert "is not in the list of families" in str(caught.value)
        assert "docs/extend.md" in str(caught.value) and "\n" not in str(caught.value)
        return
    listed = as_seen(load_family(*names_in(want.index.config)), want.layout.renormalises)
    have = inferred(path)
    # How a stack falls apart, and how transformers holds it, is in no file of the model: quantised
    # exports, which would need to know, are refused below.
    stacks = {"merged", "interleaved"}
    assert not any(have[key] for key in stacks)
    differing = {key for key in listed if listed[key] != have[key]} - stacks
    hide(path)
    found = open_model(path)
    assert found.origin == "inferred"
    layouts = [dataclasses.asdict(opened.layout) for opened in (want, found)]
    other = {key for key in layouts[0] if layouts[0][key] != layouts[1][key]}
    other -= {"merged", "splits"} if found.layout.splits else set()
    if found.layout.splits:
        with pytest.raises(UnsupportedModelError, match="moeprune has no file of the family"):
            moeprune.export(path, output=tmp_path / "out", quantize="fp8")
    if name.startswith("inkling2_loop"):  # how often a layer runs is seen when it runs, see below
        assert (differing, other) == ({"defaults", "loop"}, {"passes"})
        return
    assert not other
    check_same_facts(found.facts, want.facts)
    assert differing <= BY_CONFIG.get(name, set())
    assert name not in EXACT or not differing


def test_the_exact_ones_are_files() -> None:
    assert set(EXACT) | set(REFUSED) | set(BY_CONFIG) <= set(family_files())


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 0},  # an assertion of torch
        {"n_group": 0},  # a division by zero
        {"num_hidden_layers": 10**9},  # a model that would never be built
        {"n_routed_experts": 10**12},
        {"hidden_size": 10**9},
        {"moe_intermediate_size": None},
        {"model_type": "no_such_family"},
        {"torch_dtype": "int3"},
    ],
    ids=str,
)
def test_absurd_configs_are_one_line(change: dict[str, Any], tmp_path: Path, hide: Hide) -> None:
    path = write_checkpoint(family_data("deepseek_v3"), tmp_path / "m")
    hide(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    try:
        open_model(path)
    except MoePruneError as problem:
        assert "\n" not in str(problem)
    else:  # not every key is one that the layout depends on
        assert change in ({"torch_dtype": "int3"}, {"vocab_size": 0})


def test_a_key_that_transformers_fills_in(tmp_path: Path, hide: Hide) -> None:
    path = write_checkpoint(family_data("mixtral"), tmp_path / "m")
    config = json.loads((path / "config.json").read_text())
    hide(path)
    stated = open_model(path).facts.top_k
    del config["num_experts_per_tok"]
    (path / "config.json").write_text(json.dumps(config))
    assert stated == 3 and open_model(path).facts.top_k == 2  # the default of MixtralConfig


@pytest.fixture
def text(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "text.jsonl"
    texts = ("The mill stood where the stream left the wood.", "1 + 2 = 3; 4 * 5 = 20", "x")
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return {"d": str(path)}


@pytest.mark.parametrize("name", EXACT)
def test_the_whole_job_with_an_inferred_family(
    name: str, tmp_path: Path, hide: Hide, text: dict[str, str]
) -> None:
    path = write_checkpoint(family_data(name), tmp_path / name)
    want = moeprune.calibrate(path, domains=text)
    hide(path)
    stats, plan = tmp_path / "s.safetensors", tmp_path / "p.json"
    have = moeprune.calibrate(path, output=stats, domains=text)
    assert have.provenance["family"] == "inferred" and want.provenance["family"] == "listed"
    check_same_facts(have.model, want.model)
    for field, values in want.domains[0].arrays.items():
        np.testing.assert_array_equal(values, have.domains[0].arrays[field], err_msg=field)
    moeprune.plan(stats, output=plan, ratio=0.25)
    out = moeprune.export(path, plan=plan, output=tmp_path / "out")
    report = moeprune.verify(out, source=path, forward=True)
    assert report.ok, report.to_text()
    found = inspect(path)
    assert found.family == "inferred"
    assert "family: inferred from transformers' own classes" in inspect_text(found)


def test_layers_that_run_several_times_are_refused(
    tmp_path: Path, hide: Hide, text: dict[str, str]
) -> None:
    path = write_checkpoint(family_data("inkling2_loop_text"), tmp_path / "m")
    hide(path)
    with pytest.raises(UnsupportedModelError, match="do not run once a token"):
        moeprune.calibrate(path, domains=text)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        # One expert a token with its weight made 1: every gating gives that.
        ("qwen3_moe", {"num_experts_per_tok": 1}, "softmax and sigmoid and sqrtsoftplus"),
        # A config that transformers does not take.
        ("qwen3_moe", {"hidden_size": "wide"}, "transformers cannot build it"),
        # Layers that transformers builds dense have experts on disk.
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"transformers in \[1"),
        ("mixtral", {"intermediate_size": 8}, "is not what transformers makes of it"),
    ],
    ids=["one a token", "bad config", "other layers", "other width"],
)
def test_what_cannot_be_told_is_refused(
    name: str, change: dict[str, Any], message: str, tmp_path: Path, hide: Hide
) -> None:
    path = write_checkpoint(family_data(name), tmp_path / "m")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    hide(path)
    with pytest.raises(MoePruneError, match=message) as caught:
        open_model(path)
    assert type(caught.value) is UnsupportedModelError and "\n" not in str(caught.value)


def test_a_listed_family_is_opened_without_torch(tmp_path: Path) -> None:
    path = write_checkpoint(family_data("qwen3_moe"), tmp_path / "m")
    code = (
        "import sys; from moeprune.stages.inspect import inspect; "
        "assert inspect(sys.argv[1]).family == 'listed'; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)

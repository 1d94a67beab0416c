"""Entries of quantisation settings mean the same experts before and after pruning."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.errors import UnsupportedModelError
from moeprune.quant import ExpertNames, Renaming, check_renumberable
from moeprune.quant._settings import expected

LAYERS, EXPERTS = (1, 3), 12
PARTS = ("gate_proj", "up_proj", "down_proj")
PATHS = tuple(f"model.layers.{layer}.mlp.experts" for layer in LAYERS)
MODULES = [f"{path}.{e}.{part}" for path in PATHS for e in range(EXPERTS) for part in PARTS]


def renaming(*kept: tuple[int, ...]) -> Renaming:
    tensors = [f"{module}.{end}" for module in MODULES for end in ("weight_packed", "weight_scale")]
    return Renaming(ExpertNames.of(tensors), dict(zip(PATHS, kept, strict=True)))


KEPT = st.sets(st.integers(0, EXPERTS - 1), min_size=2).map(lambda ids: tuple(sorted(ids)))


def meaning(entries: list[str], modules: list[str]) -> set[str]:
    """The modules that a list of names and patterns means, by the plainest reading."""
    found = set()
    for module in modules:
        for entry in entries:
            if entry.startswith(("re:", "+:", "-:")):
                hit = re.match(entry[3 if entry[0] == "r" else 2 :], module) is not None
            else:
                hit = module == entry or module.startswith(entry + ".") or f".{entry}." in module
            if hit:
                found.add(module)
    return found


def renamed(module: str, kept: dict[str, tuple[int, ...]]) -> str | None:
    path, _, rest = module.partition(".experts.")
    expert, _, part = rest.partition(".")
    ids = kept[path + ".experts"]
    return f"{path}.experts.{ids.index(int(expert))}.{part}" if int(expert) in ids else None


NUMBER = st.integers(0, EXPERTS - 1)
LITERALS = st.builds(
    lambda layer, expert, part: f"model.layers.{layer}.mlp.experts.{expert}{part}",
    st.sampled_from(LAYERS),
    NUMBER,
    st.sampled_from(["", *(f".{part}" for part in PARTS)]),
)
PATTERNS = st.one_of(
    st.builds(lambda e: rf"re:.*\.experts\.{e}\..*", NUMBER),
    st.builds(lambda e: rf"re:model\.layers\.3\.mlp\.experts\.{e}\.up_proj$", NUMBER),
    st.builds(lambda a, b: rf"re:.*experts\.({a}|{b})\.down_proj", NUMBER, NUMBER),
    st.builds(lambda a: rf"re:.*layers\.1\..*experts\.[0-{a}]\.", st.integers(0, 9)),
    st.builds(lambda a: rf"+:.*experts\.1{a}\.gate", st.integers(0, 1)),
    st.sampled_from(
        [r"re:.*mlp\.experts\..*", r"re:.*\.(gate|up)_proj", r"re:.*lm_head", "lm_head"]
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(LITERALS | PATTERNS, max_size=5), KEPT, KEPT)
def test_entries_keep_their_meaning(
    entries: list[str], first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    change = renaming(first, second)
    kept = dict(zip(PATHS, (first, second), strict=True))
    after = expected(entries, change)
    modules = {module: renamed(module, kept) for module in MODULES}
    due = {modules[module] for module in meaning(entries, MODULES)} - {None}
    assert meaning(after, [new for new in modules.values() if new]) == due
    # Nothing is spelled anew without need, and what means no expert stays.
    assert [entry for entry in after if "experts" not in entry] == [
        entry for entry in entries if "experts" not in entry
    ]


def test_a_name_is_renumbered_or_leaves() -> None:
    change = renaming((0, 2, 5), (1, 2, 11))
    assert change("model.layers.1.mlp.experts.5.up_proj") == (
        "model.layers.1.mlp.experts.2.up_proj",
    )
    assert change("model.layers.1.mlp.experts.1") == ()
    assert change("layers.3.mlp.experts.11") == ("layers.3.mlp.experts.2",)
    # Settings of wrappers spell the model's path in another way than the file.
    assert change("model.language_model.layers.3.mlp.experts.11.up_proj") == (
        "model.language_model.layers.3.mlp.experts.2.up_proj",
    )
    # One entry for several layers, while its experts get one number.
    assert change("experts.2") == ("experts.1",)
    assert change("experts.5") == (f"{PATHS[0]}.2",)
    assert change("experts.7") == ()


def test_a_pattern_keeps_its_form_where_it_can() -> None:
    change = renaming((0, 2, 5), (1, 2, 11))
    assert change(r"re:.*\.experts\.2\..*") == (r"re:.*\.experts\.1\..*",)
    assert change("re:.*[.]experts[.]2[.]up_proj") == ("re:.*[.]experts[.]1[.]up_proj",)
    assert change(r"re:.*\.experts\.7\..*") == ()
    assert change(r"re:.*\.experts\..*") == (r"re:.*\.experts\..*",)
    listed = change(r"+:.*\.experts\.(2|5)\.up_proj")
    assert [
        re.fullmatch(entry[2:], name) is not None
        for entry, name in zip(
            listed,
            (f"{PATHS[0]}.1.up_proj", f"{PATHS[0]}.2.up_proj", f"{PATHS[1]}.1.up_proj"),
            strict=True,
        )
    ] == [True] * 3


@pytest.mark.parametrize(
    "entry", ["model.layers.2.mlp.experts.1", r"re:model\.layers\.9\..*experts\.3\.", "experts.99"]
)
def test_an_expert_that_is_not_there_is_refused(entry: str) -> None:
    with pytest.raises(UnsupportedModelError, match="name an expert"):
        renaming((0, 1), (0, 1))(entry)


def test_a_broken_pattern_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot be read"):
        renaming((0, 1), (0, 1))("re:(")


NAMES_AN_EXPERT = [
    {"quantization_config": {"ignore": ["lm_head", "model.layers.0.mlp.experts.3.up_proj"]}},
    {"quantization_config": {"modules_to_not_convert": ["experts.0"]}},
    {"quantization_config": {"ignore": [r"re:.*\.experts\.12\..*"]}},
    {"text_config": {"quantization_config": {"a": {"model.experts.7.w1": {"bits": 8}}}}},
    {"compression_config": {"groups": [{"targets": ["x.experts.1.w2"]}]}},
]


@pytest.mark.parametrize("config", NAMES_AN_EXPERT)
def test_quantisation_that_names_single_experts_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="name a single expert"):
        check_renumberable(config)


def test_quantisation_that_names_kinds_of_modules_is_fine() -> None:
    check_renumberable(
        {
            "quantization_config": {
                "quant_method": "fp8",
                "ignore": ["lm_head", "re:.*mlp.gate$", "shared_experts.0", "experts", "experts.*"],
            },
            "note": "experts.3.up_proj outside the quantisation settings",
        }
    )

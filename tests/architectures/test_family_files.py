"""Family files: every one is complete, named by its model_type, and shipped."""

import json
from importlib import resources

import pytest

from moeprune import architectures, plugins
from moeprune.architectures import family_names, load_family
from moeprune.errors import UnsupportedModelError
from moeprune.observe import observers


@pytest.mark.parametrize("name", family_names())
def test_family_file(name: str) -> None:
    body = json.loads(
        (resources.files("moeprune.architectures") / "families" / f"{name}.json").read_text()
    )
    assert body["model_type"] == name
    family = load_family(name)
    if "same_as" in body:
        assert set(body) == {"model_type", "same_as"}
        assert family == load_family(body["same_as"])
        return
    assert family.gating in ("softmax", "sigmoid", "sqrtsoftplus")
    assert family.observer in plugins.names(observers)
    for module in (family.experts, family.router):
        assert module and not module.startswith(".") and "layers" not in module
    assert family.groups or not family.groups_when
    if family.scale is None:
        assert not family.scale_values and not family.scale_unless
    else:  # a config that leaves the keys out must give a number too
        default = family.defaults[family.scale]
        assert family.scale_values.get(default, default) > 0
        assert family.scale_unless.keys() <= family.defaults.keys()


def test_recipes_are_the_modules_of_the_folder() -> None:
    assert plugins.names(architectures) == ("blocks", "fused", "per-expert")


def test_the_first_known_name_wins() -> None:
    assert load_family("qwen3_moe", "mixtral").model_type == "qwen3_moe"
    assert load_family("not_a_family", "mixtral").model_type == "mixtral"
    assert load_family(None, "kimi_k25").model_type == "deepseek_v3"
    with pytest.raises(UnsupportedModelError, match=r"'qwen3_mo'.*'qwen3_moe'.*docs/extend\.md"):
        load_family("qwen3_mo", None)

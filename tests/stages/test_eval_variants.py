"""Files of variants: what they may say, and one line for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plans import plan_keeping

from moeprune.core.policy import RoutingPolicy
from moeprune.core.policy_words import PolicyWords
from moeprune.errors import MoePruneError, UsageError
from moeprune.stages.eval_model import open_asked
from moeprune.stages.eval_variants import read_variants, variants_of


def written(folder: Path, text: str) -> Path:
    path = folder / "varianten.toml"
    path.write_text(text, "utf-8")
    return path


def test_plans_lie_beside_the_file(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_keeping(tiny("olmoe"), [range(9), range(10)])
    (tmp_path / "pläne").mkdir()
    plan.save(tmp_path / "pläne" / "a.json")
    monkeypatch.chdir("/")
    whole = str(tmp_path / "pläne" / "a.json")
    path = written(
        tmp_path,
        'schema = "moeprune.variants/1"\n[[variant]]\nname = "基线"\n'
        '[[variant]]\nname = "a"\nplan = "pläne/a.json"\n'
        f'[[variant]]\nname = "b c"\nplan = "{whole}"\n',
    )
    found = read_variants(path)
    assert [variant.name for variant in found] == ["基线", "a", "b c"]
    assert [variant.plan for variant in found] == [None, plan, plan]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "that lists no variants"),
        ("x = ", "not TOML"),
        ("variant = 3", "that lists no variants"),
        ("variant = [3]", "that lists no variants"),
        ("variant = []", "no variant to evaluate"),
        ('[[variants]]\nname = "a"', "Did you mean 'variant'"),
        ('[[variant]]\nplan = "a.json"', "variant 1 has no name"),
        ('[[variant]]\nname = "a"\npaln = "a.json"', "Did you mean 'plan'"),
        ('[[variant]]\nname = "a"\nk3 = 3', "no key of .* named 'k3'"),
        ('[[variant]]\nname = "a"\nk1 = "3"', "variant 1: k1 = '3' is not a whole number"),
        ('[[variant]]\nname = "a"\nk1 = 3.0', "k1 = 3.0 is not a whole number"),
        ('[[variant]]\nname = "a"\nk1 = true', "k1 = True is not a whole number"),
        ('[[variant]]\nname = "a"\nk2 = "all"', "k2 = 'all' is not a whole number, or 'E'"),
        ('[[variant]]\nname = "a"\ngain = []', "is not a number, or one a layer"),
        ('[[variant]]\nname = "a"\ngain = [1, "x"]', "is not a number, or one a layer"),
        ('[[variant]]\nname = "a"\nablation = 3', "ablation = 3 is not a text"),
        ("[[variant]]\nname = 3", "name = 3 is not a text"),
        ('[[variant]]\nname = ""', "is not a text"),
        ('[[variant]]\nname = "a"\nplan = "no.json"', r"no\.json does not exist"),
        ('[[variant]]\nname = "a"\n[[variant]]\nname = "a"', "two variants 'a'"),
        ('[[variant]]\nname = "a"\n[[variant]]\nname = "A"', "differ in case alone"),
        ('[[variant]]\nname = "a/b"', "cannot be the name of a folder"),
        ('[[variant]]\nname = ".."', "cannot be the name of a folder"),
        ('[[variant]]\nname = " a"', "cannot be the name of a folder"),
        ('[[variant]]\nname = "a\\nb"', "cannot be the name of a folder"),
        (f'[[variant]]\nname = "{"剪" * 90}"', "cannot be the name of a folder"),
        ('schema = "moeprune.variants/2"\n[[variant]]\nname = "a"', "this moeprune reads"),
        ('schema = "moeprune.recipe/1"\n[[variant]]\nname = "a"', "a list of variants"),
    ],
)
def test_what_is_no_file_of_variants(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(MoePruneError, match=match) as caught:
        read_variants(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_policies_of_a_file(tiny: Any, tmp_path: Path) -> None:
    plan = plan_keeping(tiny("olmoe"), [range(9), range(10)])
    plan.save(tmp_path / "a.json")
    path = written(
        tmp_path,
        '[[variant]]\nname = "ganz"\n'
        '[[variant]]\nname = "k"\nplan = "a.json"\nk1 = 2\nk2 = 5\ngain = 1.5\n'
        '[[variant]]\nname = "e"\nk1 = 2\nk2 = "E"\ngain = [1, 0.5]\n'
        '[[variant]]\nname = "zufällig"\nablation = "random"\nseed = 3\n',
    )
    asked = open_asked(tiny("olmoe"))
    found = variants_of(asked, plan=None, words=PolicyWords(), variants=path, name=None)
    # Its router does not renormalise: by itself it is (3, 12).
    assert [variant.policy for variant in found] == [
        None,
        RoutingPolicy(k1=2, k2=5, gain=1.5),
        RoutingPolicy(k1=2, k2=12, gain=(1.0, 0.5)),
        RoutingPolicy(k1=3, k2=12, ablation="random", seed=3),
    ]
    assert [variant.plan for variant in found] == [None, plan, None, None]
    same = {
        "ganz": None,
        "k": {"plan": str(tmp_path / "a.json"), "k1": 2, "k2": 5, "gain": 1.5},
        "e": RoutingPolicy(k1=2, k2=12, gain=(1.0, 0.5)),
        "zufällig": found[3],
    }
    assert variants_of(asked, plan=None, words=PolicyWords(), variants=same, name=None) == found
    requests = [variant.request() for variant in found]
    assert requests[0] == ["ganz", None] and len({str(request) for request in requests}) == 4
    assert requests[3][2] == {"k1": 3, "k2": 12, "ablation": "random", "seed": 3}


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"k1": 13, "k2": 13}, "^variant 'a': --k1 13 is too many"),
        ({"k1": 2}, "^variant 'a': --k1 2 .* Give --k2 too"),
        ({"gain": (1.0, 2.0, 3.0)}, "--gain has 3 numbers"),
        ({"plan": 3}, "plan = 3 is not a text"),
        ({"k3": 3}, "named .k3.. There are: ablation, gain, k1, k2"),
    ],
)
def test_what_no_router_can_take(said: dict[str, Any], match: str, tiny: Any) -> None:
    asked = open_asked(tiny("olmoe"))
    with pytest.raises(MoePruneError, match=match):
        variants_of(asked, plan=None, words=PolicyWords(), variants={"a": said}, name=None)


def test_one_of_both_ways() -> None:
    for words, option in ((PolicyWords(k1=2, k2=2), "--k1, --k2"), (PolicyWords(), "--plan")):
        plan = None if words.given else "plan.json"
        with pytest.raises(UsageError, match=f"--variants names all .* {option}"):
            variants_of(None, plan=plan, words=words, variants={}, name=None)  # type: ignore[arg-type]


def test_a_plan_leaves_fewer_to_run(tiny: Any) -> None:
    model = tiny("qwen3_moe")
    plan = plan_keeping(model, [range(12), range(4), range(12)])
    variants = {"a": {"plan": plan, "k1": 5, "k2": 5}}
    with pytest.raises(UsageError, match="--k1 5 is too many: layer 2 has 4 experts"):
        variants_of(open_asked(model), plan=None, words=PolicyWords(), variants=variants, name=None)


def test_other_things_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, match in (
        ("missing", "does not exist"),
        ("bytes", "binary"),
        (".", "folder"),
        ("nul\0", "cannot be read"),
    ):
        with pytest.raises(MoePruneError, match=match) as caught:
            read_variants(tmp_path / name)
        assert "[[variant]]" in str(caught.value) or name == "nul\0"

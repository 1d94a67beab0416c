"""Files of variants: what they may say, and one line for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plans import plan_keeping

from moeprune.errors import MoePruneError
from moeprune.stages.eval_variants import read_variants


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
        ('[[variant]]\nname = "a"\nk1 = 3', "no key of .* named 'k1'"),
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

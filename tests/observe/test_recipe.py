"""Recipes: the one that ships, a user's own, and one line for each mistake in it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from moeprune.errors import DomainError, MoePruneError, UsageError
from moeprune.observe.named import named_domains
from moeprune.observe.recipe import read_recipe
from moeprune.observe.sources import builtin_names
from moeprune.packaged import calibration_folder

GOOD = """schema = "moeprune.recipe/1"
samples = 20
[domains.math]
source = "texts/math.jsonl"
[domains.'法律']
source = "builtin:science"
licence = "Apache-2.0"
[domains.code]
source = "hf:org/name:train:text"
[domains.table]
source = "/data/t.parquet:column"
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_names_domains_in_order_with_files_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.toml", GOOD)
    domains, samples = read_recipe(path)
    assert list(domains.items()) == [
        ("math", str(tmp_path / "texts" / "math.jsonl")),
        ("法律", "builtin:science"),
        ("code", "hf:org/name:train:text"),
        ("table", "/data/t.parquet:column"),
    ]
    assert samples == 20
    assert read_recipe(path, samples=3)[1] == 3
    assert read_recipe(write(path, GOOD.replace("samples = 20", "")))[1] is None
    # As editors of Windows write it: a byte order mark, lines that end in two signs.
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert read_recipe(path) == (domains, samples)


def test_the_recipe_that_ships_has_the_built_in_domains_with_licences() -> None:
    domains, samples = read_recipe("six-domains.toml")
    assert list(domains) == list(builtin_names())
    assert samples == 1000
    assert named_domains(domains) == domains
    body = tomllib.loads((calibration_folder() / "six-domains.toml").read_text(encoding="utf-8"))
    for entry in body["domains"].values():
        # ORG/NAME, a configuration or none, split and column, all of them stated
        assert re.fullmatch(r"hf:[\w-]+/[\w-]+(/[\w.]+)?:\w+:\w+(\+\w+)?", entry["source"])
        assert entry["licence"] and entry["about"]


def test_a_file_goes_before_the_recipe_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "six-domains.toml", GOOD)
    assert "法律" in read_recipe("six-domains.toml")[0]
    assert "法律" not in read_recipe(calibration_folder() / "six-domains.toml")[0]


MISTAKES = {
    "no toml": ("domains = ", r"is a text file, not TOML \(Invalid value"),
    "deep": ("a = " + "[" * 100_000, r"not TOML|cannot be read"),
    "no schema": (
        "[domains.a]\nsource = 'x.txt'",
        r"is a text file \(schema None\); it should be a recipe",
    ),
    "newer": (
        GOOD.replace("recipe/1", "recipe/2"),
        r"has schema moeprune\.recipe/2, this moeprune",
    ),
    "key": ("length = 3\n" + GOOD, r"has 'length'; a recipe knows schema, samples, domains"),
    "none": ("schema = 'moeprune.recipe/1'", r"names no domain\. Write \[domains\.NAME\]"),
    "empty": ("schema = 'moeprune.recipe/1'\n[domains]", r"names no domain"),
    "list": ("schema = 'moeprune.recipe/1'\ndomains = ['a']", r"names no domain"),
    "samples": (GOOD.replace("20", "0"), r"samples = 0 is not a number of documents"),
    "true": (GOOD.replace("20", "true"), r"samples = True is not a number"),
    "text": ("schema = 'moeprune.recipe/1'\ndomains.a = 'x.txt'", r"domain 'a' is a str; write"),
    "source": ("schema = 'moeprune.recipe/1'\n[domains.a]", r"domain 'a' has no source"),
    "type": (GOOD.replace('"builtin:science"', "3"), r"domain '法律': source = 3 is not a text"),
    "domain key": (GOOD + "split = 'x'", r"domain 'table' has 'split'; a recipe knows source"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(case: str, tmp_path: Path) -> None:
    text, message = MISTAKES[case]
    with pytest.raises(DomainError, match=message) as caught:
        read_recipe(write(tmp_path / "r.toml", text))
    assert "\n" not in str(caught.value) and "r.toml" in str(caught.value)


def test_files_that_are_no_recipe_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"a = '\xff'")
    for path, message in {
        tmp_path / "none.toml": "does not exist",
        tmp_path: "is a folder; name a recipe",
        tmp_path / "latin.toml": r"is a text file, not UTF-8 text \(byte 5\)",
        Path("a\0.toml"): "cannot be read: embedded null byte",
    }.items():
        with pytest.raises(MoePruneError, match=message):
            read_recipe(path)
    with pytest.raises(UsageError, match="give one of them"):
        read_recipe("six-domains.toml", domains=["a=b.txt"])

"""The routing profile that ``analyse`` prints and writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic

import moeprune
from moeprune.cli.main import main
from moeprune.core.gains import domain_profiles, rank_profile
from moeprune.core.stats import CalibrationStats

MODEL = synthetic.facts((16, 12), top_k=4)


@pytest.fixture(scope="module")
def stats() -> CalibrationStats:
    return synthetic.stats(MODEL)


@pytest.fixture(scope="module")
def path(stats: CalibrationStats, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gains") / "stats.safetensors"
    stats.save(path)
    return path


def test_what_was_asked_for(stats: CalibrationStats) -> None:
    found = moeprune.analyse(stats, k1=[2, 3], k2=[4, 8, "E"])["routing_profile"]
    pairs = [(gain["k1"], gain["k2"]) for gain in found["gains"]]
    assert pairs == [(2, 4), (2, 8), (2, 16), (3, 4), (3, 8), (3, 16)]
    whole, each = rank_profile(stats), domain_profiles(stats)
    for gain in found["gains"]:
        by_layer = whole.gain_L(gain["k1"], gain["k2"])
        assert gain["by_layer"] == pytest.approx(by_layer.tolist(), abs=1e-9)
        assert gain["mean"] == pytest.approx(by_layer.mean(), abs=1e-9)
        assert list(gain["by_domain"]) == [domain.name for domain in stats.domains]
        for name, profile in each.items():
            own = profile.gain_L(gain["k1"], gain["k2"]).tolist()
            assert gain["by_domain"][name] == pytest.approx(own, abs=1e-9)
    assert [len(row) for row in found["mean"]] == [16, 12]
    assert [row[-1] for row in found["cumulative"]] == pytest.approx([1, 1], abs=1e-6)


def test_unasked(stats: CalibrationStats) -> None:
    """Half, three quarters and all of the model's own, and no gain that is 1 by definition."""
    found = moeprune.analyse(stats)["routing_profile"]
    pairs = [(gain["k1"], gain["k2"]) for gain in found["gains"]]
    assert pairs == [
        *((2, k2) for k2 in (3, 4, 8, 16)),
        *((3, k2) for k2 in (4, 8, 16)),
        *((4, k2) for k2 in (8, 16)),
    ]
    lone = synthetic.stats(synthetic.facts((1,), top_k=1))
    only = moeprune.analyse(lone)["routing_profile"]["gains"]
    assert [(gain["k1"], gain["k2"], gain["by_layer"]) for gain in only] == [(1, 1, [1.0])]


def test_the_native_gain(stats: CalibrationStats) -> None:
    assert moeprune.analyse(stats)["routing_profile"]["native"] is None  # an older file
    mass = rank_profile(stats).top_mass_L(4)
    for k2, gains, factors in ((4, [1, 1], 1 / mass), (16, mass, [1, 1])):
        known = replace(stats, model=replace(stats.model, native_k2=k2))
        found = moeprune.analyse(known)["routing_profile"]["native"]
        assert (found["k1"], found["k2"]) == (4, k2)
        assert found["by_layer"] == pytest.approx(list(gains), abs=1e-6)
        assert found["amplification"] == pytest.approx(list(factors), abs=1e-6)


def test_command(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["analyse", str(path), "-o", str(tmp_path / "a.json"), "--k1", "2,3", "--k2", "8, E"]
    assert main(command) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith(("  2, ", "  3, ", "  gain"))]
    assert [line.split("  ")[1] for line in lines] == [
        "gain of k1, k2",
        "2, 8",
        "2, 16 (all)",
        "3, 8",
        "3, 16 (all)",
    ]
    assert max(map(len, lines)) <= 100 and "rank 1: 0." in out
    assert main([*command, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)["routing_profile"]
    assert f"{body['gains'][0]['mean']:.3f}" in lines[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--k1", "2"], "--k1 without --k2"),
        (["--k2", "8"], "--k2 without --k1"),
        (["--k1", "2,,3", "--k2", "8"], "--k1 '2,,3': '' is not a whole number from 1; use"),
        (["--k1", "E", "--k2", "8"], "--k1 'E': 'E' is not a whole number"),
        (["--k1", "2", "--k2", "all"], "'all' is not a whole number from 1, or E for all"),
        (["--k1", "2", "--k2", "0"], "'0' is not a whole number"),
        (["--k1", "13", "--k2", "E"], "--k1 13: layer 1 has 12 experts"),
    ],
)
def test_one_line(
    options: list[str], words: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.json"
    assert main(["analyse", str(path), "-o", str(out), *options]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and not out.exists()


def test_a_router_of_groups_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.stats(synthetic.facts((16,), top_k=2, groups=4, top_groups=2)).save(tmp_path / "s")
    assert main(["analyse", str(tmp_path / "s"), "-o", str(tmp_path / "a.json")]) == 0
    assert "this router chooses within groups" in capsys.readouterr().out

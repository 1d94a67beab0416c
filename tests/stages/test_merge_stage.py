"""merge: files in, one file out; any order gives the same bytes; nothing counts twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moeprune
from moeprune.core.merging import missing_shards
from moeprune.core.stats import CalibrationStats, DomainStats
from moeprune.errors import MismatchError, OutputError, StatsError, UsageError


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_text("\f".join(f"one two {i}" for i in range(9)))
    return str(path)


def stats(model: Path, output: Path, text: str, **options: Any) -> Path:
    options = {"domains": {"d": text}, **options}
    moeprune.calibrate(model, output=output, **options)
    return output


def test_any_order_of_shards_gives_the_same_bytes(tiny: Any, text: str, tmp_path: Path) -> None:
    parts = [stats(tiny("mixtral"), tmp_path / f"{i}", text, shard=(i, 3)) for i in range(3)]
    orders = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
    made = []
    for number, order in enumerate(orders):
        output = tmp_path / f"merged{number}"
        merged = moeprune.merge([parts[i] for i in order], output=output)
        assert merged.domain("d").shards == ((0, 1),)
        made.append(output.read_bytes())
    assert made[0] == made[1] == made[2]


def test_two_of_three_shards_stay_two_of_three(tiny: Any, text: str, tmp_path: Path) -> None:
    parts = [stats(tiny("mixtral"), tmp_path / f"{i}", text, shard=(i, 3)) for i in (0, 2)]
    merged = moeprune.merge(parts, output=tmp_path / "merged")
    assert merged.domain("d").shards == ((0, 3), (2, 3))
    assert CalibrationStats.load(tmp_path / "merged").domain("d").shards == ((0, 3), (2, 3))


def test_other_domains_stand_side_by_side(tiny: Any, text: str, tmp_path: Path) -> None:
    one = stats(tiny("mixtral"), tmp_path / "one", text)
    two = stats(tiny("mixtral"), tmp_path / "two", text, domains={"ü": text})
    merged = moeprune.merge([one, two], output=one)  # the output may be one of the inputs
    assert [domain.name for domain in merged.domains] == ["d", "ü"]
    assert CalibrationStats.load(one).domain("ü").num_tokens() == merged.domain("d").num_tokens()


def test_what_does_not_belong_together_is_refused(tiny: Any, text: str, tmp_path: Path) -> None:
    one = stats(tiny("mixtral"), tmp_path / "one", text)
    output = tmp_path / "merged"
    with pytest.raises(StatsError, match="shard 0/1 overlaps 0/1"):
        moeprune.merge([one, one], output=output)
    other = stats(tiny("olmoe"), tmp_path / "other", text)
    with pytest.raises(MismatchError, match="stats of two models"):
        moeprune.merge([one, other], output=output)
    short = stats(tiny("mixtral"), tmp_path / "short", text, length=5, domains={"e": text})
    with pytest.raises(MismatchError, match="length"):
        moeprune.merge([one, short], output=output)
    with pytest.raises(StatsError, match="does not exist"):
        moeprune.merge([one, tmp_path / "none"], output=output)
    with pytest.raises(UsageError, match="nothing to merge"):
        moeprune.merge([], output=output)
    with pytest.raises(OutputError, match="does not exist"):
        moeprune.merge([one], output=tmp_path / "none" / "x")
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(
        StatsError, match=r"junk is a text file; it should be stats, which 'moeprune cal"
    ):
        moeprune.merge([tmp_path / "junk"], output=output)
    assert not output.exists()


def test_shards_of_several_splits_that_hold_every_document_are_the_whole(
    tiny: Any, text: str, tmp_path: Path
) -> None:
    whole = stats(tiny("mixtral"), tmp_path / "whole", text)
    parts = [
        stats(tiny("mixtral"), tmp_path / f"{i}-{n}", text, shard=(i, n))
        for i, n in ((1, 2), (0, 4), (2, 4))
    ]
    two = moeprune.merge(parts[:2], output=tmp_path / "two")
    assert missing_shards(two.domain("d")) == ((2, 4),)
    merged = moeprune.merge(parts, output=tmp_path / "merged")
    assert merged.domain("d").shards == ((0, 1),)
    assert not missing_shards(merged.domain("d"))
    for name, array in CalibrationStats.load(whole).domain("d").arrays.items():
        np.testing.assert_allclose(merged.domain("d").arrays[name], array, rtol=1e-6, atol=1e-6)


def test_what_is_missing_is_what_no_shard_holds() -> None:
    """Against the definition: document i is in shard i mod n."""
    draw = np.random.RandomState(0)
    for _ in range(200):
        documents = int(draw.randint(1, 40))
        of = [int(draw.choice([1, 2, 3, 4, 6, 8, 12])) for _ in range(draw.randint(1, 4))]
        shards = tuple((int(draw.randint(n)), n) for n in of)
        domain = DomainStats(
            name="d", source="d", corpus_sha256="", documents=documents, shards=shards
        )
        held = {i for i in range(documents) if any(i % n == index for index, n in shards)}
        due = set(range(documents)) - held
        found = missing_shards(domain)
        assert due == {i for i in range(documents) if any(i % n == at for at, n in found)}
        assert bool(found) == bool(due)
